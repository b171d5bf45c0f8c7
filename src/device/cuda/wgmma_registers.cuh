// What warpgroups that multiply (wgmma) do with their registers.
#pragma once

#include "device/cuda/ptx.h"

namespace warpweave::cuda {

// The same value in all lanes, in a uniform register: descriptors are read from those.
WW_DEVICE ptx::u32 uniform(ptx::u32 value) { return __reduce_max_sync(~0u, value); }

// Keeps the compiler from moving reads of accumulators over the wait.
template <int kCount>
WW_DEVICE void fence_registers(float (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(r[i])::"memory");
}

// Of a thread's two rows, of any sign; four chains.
template <int kScores>
WW_DEVICE void find_maxima(const float (&s)[kScores], float (&top)[2]) {
  float part[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) part[i] = fmaxf(s[i], s[i + 4]);
#pragma unroll
  for (int i = 8; i < kScores; ++i) part[i % 4] = fmaxf(part[i % 4], s[i]);
  top[0] = fmaxf(part[0], part[1]);
  top[1] = fmaxf(part[2], part[3]);
}

// 4x4 over the lanes of a quad: word j of lane i becomes word i of lane j.
WW_DEVICE void transpose_quad(ptx::u32 (&w)[4]) {
  const int i = threadIdx.x % 4;
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = i & step;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j & step) continue;
      const ptx::u32 send = upper ? w[j] : w[j | step];
      const ptx::u32 received = __shfl_xor_sync(~0u, send, step);
      if (upper) w[j] = received; else w[j | step] = received;
    }
  }
}

// A thread's part of a row of the tile's sums, scaled, to the row at `out`. Lanes of a quad trade 4-byte pairs so that
// each stores 16 contiguous bytes: all of them call it, `wanted` or not.
template <class Element, int kSums>
WW_DEVICE void store_row(const float (&sums)[kSums], int row, float scale, char* out, bool wanted) {
#pragma unroll
  for (int i = 0; i < kSums / 16; ++i) {
    ptx::u32 own[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = (i * 4 + j) * 4 + row * 2;
      own[j] = Element::pack(sums[at] * scale, sums[at + 1] * scale);
    }
    transpose_quad(own);
    if (wanted) reinterpret_cast<uint4*>(out)[i * 4 + threadIdx.x % 4] = make_uint4(own[0], own[1], own[2], own[3]);
  }
}

}  // namespace warpweave::cuda
