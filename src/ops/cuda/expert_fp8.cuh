// Sums of 8-bit operands of experts: those of a stage, 128 elements deep, are brought to f32, scaled by their block of weights;
// scales of weight rows and of rows of x follow once, at the end.
#pragma once

#include "device/cuda/wgmma_fp8.h"
#include "ops/cuda/expert_gemm.cuh"
#include "ops/cuda/fp8.h"
#include "ops/cuda/fp8_codes.cuh"

namespace warpweave::gpu {

// The place of a thread's i-th pair of sums, which are those of its two weight rows.
__device__ __forceinline__ int expert_place(int i) { return i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2; }

// Of x, for the places of a tile that a thread has sums of.
template <int kPlaces>
struct ExpertPlaceScales {
  float of[kPlaces / 4];

  // `x_scales`: of the tile's first place.
  __device__ __forceinline__ void read(const float* x_scales, int places) {
#pragma unroll
    for (int i = 0; i < kPlaces / 4; ++i) {
      const int place = expert_place(i);
      of[i] = place < places ? __ldcg(x_scales + place) : 0.0f;
    }
  }
};

// Rows beyond the last are not written later: their scales are any.
template <class C>
struct ExpertFp8Scales {
  const float* of_weights[2];   // of the expert, at the thread's two rows
  bool by_block;

  __device__ ExpertFp8Scales(const ExpertGemmArgs& a, int expert, int first_row) : by_block(a.scale_stride > 0) {
    const float* const scales = a.scales[expert];
#pragma unroll
    for (int i = 0; i < 2; ++i) of_weights[i] = scales + at(a, first_row, i);
  }
  // Of the thread's i-th row, among those of the expert.
  static __device__ __forceinline__ int64_t at(const ExpertGemmArgs& a, int first_row, int i) {
    const int row = min(expert_row(first_row) + 8 * i, a.rows - 1);
    int of_row = row;  // among gate's rows, then up's
    if constexpr (C::kGlu != Glu::none) of_row = row / 16 * 8 + row % 8 + row / 8 % 2 * (a.rows / 2);
    return a.scale_stride > 0 ? int64_t{of_row / int{kFp8Block}} * a.scale_stride : of_row;
  }
  // Those of a tile to come, `scales` its expert's, on their way to the L2 cache.
  static __device__ __forceinline__ void prefetch(const ExpertGemmArgs& a, const float* scales, int first_row) {
#pragma unroll
    for (int i = 0; i < 2; ++i) ptx::prefetch_l2(scales + at(a, first_row, i));
  }
  __device__ __forceinline__ float of_chunk(int i, int chunk) const { return by_block ? __ldg(of_weights[i] + chunk) : 1.0f; }
  __device__ __forceinline__ float of_row(int i) const { return by_block ? 1.0f : __ldg(of_weights[i]); }

  template <int kSums>
  static __device__ __forceinline__ void add(float first, float second, const float (&part)[kSums], float (&sum)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum[i] += part[i] * (i % 4 < 2 ? first : second);
  }
  template <int kPlaces>
  __device__ __forceinline__ void finish(const ExpertPlaceScales<kPlaces>& places, float (&sum)[kPlaces / 2]) const {
    const float first = of_row(0), second = of_row(1);
#pragma unroll
    for (int i = 0; i < kPlaces / 4; ++i) {
      sum[i / 2 * 4 + i % 2] *= first * places.of[i];
      sum[i / 2 * 4 + 2 + i % 2] *= second * places.of[i];
    }
  }
  template <int kSums>
  __device__ __forceinline__ void finish(float (&sum)[kSums]) const {
    const float first = of_row(0), second = of_row(1);
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum[i] *= i % 4 < 2 ? first : second;
  }
};

// The sums of a stage alone, or of each quarter of it. Weight rows and places are in stages as expert_gemm.cu has them.
template <int kPlaces, int kParts>
__device__ __forceinline__ void multiply_codes(u32 weights, u32 places, float (&part)[kParts][kPlaces / 2]) {
  constexpr int kSteps = kExpertRowBytes / 32;
  const u32 w = ptx::wgmma_descriptor(weights, 0), x = ptx::wgmma_descriptor(places, 0);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    ptx::WgmmaE4m3<kPlaces>::template ss<kExpertRowBytes>(part[k * kParts / kSteps], ptx::wgmma_advance(w, k * 32),
                                                          ptx::wgmma_advance(x, k * 32), k % (kSteps / kParts) > 0);
  }
  ptx::wgmma_commit();
}

// x with a scale for each kExpertCodeGroup columns of a place, four of a chunk: those of a tile, in shared memory, by its
// warpgroup, of which each thread brings four.
template <int kPlaces>
struct ExpertGroupScales {
  u32 memory;
  int chunks;

  __device__ __forceinline__ ExpertGroupScales(const ExpertGemmArgs& a, const ExpertTile& tile, u32 memory) : memory(memory), chunks(a.chunks) {
    const int own = threadIdx.x % 128;
    if (own < tile.count * chunks) {
      const float4 scales = __ldcg(reinterpret_cast<const float4*>(a.x_scales) + int64_t{tile.first} * chunks + own);
      ptx::store_shared_8(memory + own * 16, scales.x, scales.y);
      ptx::store_shared_8(memory + own * 16 + 8, scales.z, scales.w);
    }
    ptx::named_barrier_sync(1, 128);
  }
  // `first`, `second`: of the chunk of the thread's two weight rows.
  __device__ __forceinline__ void add(int chunk, float2 of_rows, const float (&part)[4][kPlaces / 2], float (&sum)[kPlaces / 2]) const {
#pragma unroll
    for (int i = 0; i < kPlaces / 4; ++i) {
      u32 scale[4];
      ptx::load_shared_16(scale, memory + (expert_place(i) * chunks + chunk) * 16);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int at = i / 2 * 4 + row * 2 + i % 2;
        float of_chunk = 0;
#pragma unroll
        for (int group = 0; group < 4; ++group) of_chunk += part[group][at] * __uint_as_float(scale[group]);
        sum[at] += of_chunk * (row == 0 ? of_rows.x : of_rows.y);
      }
    }
  }
};

// The outputs of a tile of gates and ups leave in 8 bits, the kExpertCodeGroup of each place with a scale of their own.
template <class C, int kPlaces>
__device__ __forceinline__ void write_codes(const ExpertOut<C, kPlaces>& out, const float (&sum)[kPlaces / 2]) {
  static_assert(kPlaces * (kExpertCodeGroup + 16) <= kPassBytes && kPlaces * kExpertCodeGroup / 16 <= 128);
  const ExpertGemmArgs& a = out.a;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = out.first_row / (2 * kExpertCodeGroup);
  const u32 largest_of_warps = out.staging + kPlaces * kExpertCodeGroup;  // four a place
  float value[kPlaces / 4];
#pragma unroll
  for (int i = 0; i < kPlaces / 4; ++i) {
    value[i] = out.activated(sum[i / 2 * 4 + i % 2], sum[i / 2 * 4 + 2 + i % 2]);
    float largest = fabsf(value[i]);
#pragma unroll
    for (int step = 4; step < 32; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    if (lane < 4) ptx::store_shared_4(largest_of_warps + (expert_place(i) * 4 + warp) * 4, __float_as_uint(largest));
  }
  ptx::named_barrier_sync(1 + out.group, 128);
#pragma unroll
  for (int i = 0; i < kPlaces / 4; ++i) {
    const int place = expert_place(i);
    u32 of_warps[4];
    ptx::load_shared_16(of_warps, largest_of_warps + place * 16);  // none is negative: bits order as values do
    const CodeScale scale(__uint_as_float(max(max(of_warps[0], of_warps[1]), max(of_warps[2], of_warps[3]))));
    u32 codes = codes_of(value[i], 0, scale.inverse);
    codes |= __shfl_down_sync(~0u, codes, 4) << 8;  // four neighbours of a place, whose lanes are 4 apart
    codes |= __shfl_down_sync(~0u, codes, 8) << 16;
    if (lane % 16 < 4) ptx::store_shared_4(out.staging + place * kExpertCodeGroup + warp * 8 + lane / 16 * 4, codes);
    if (warp == 0 && lane < 4 && place < out.tile.count) {
      a.code_scales[int64_t{out.tile.first + place} * (a.outputs / kExpertCodeGroup) + group] = scale.scale;
    }
  }
  ptx::named_barrier_sync(1 + out.group, 128);
  const int place = threadIdx.x % 128 / 2, half = threadIdx.x % 2 * 16;
  if (place < kPlaces && place < out.tile.count) {
    u32 v[4];
    ptx::load_shared_16(v, out.staging + place * kExpertCodeGroup + half);
    const int64_t at = int64_t{out.tile.first + place} * a.outputs + group * kExpertCodeGroup + half;
    *reinterpret_cast<uint4*>(a.codes + at) = make_uint4(v[0], v[1], v[2], v[3]);
  }
  ptx::named_barrier_sync(1 + out.group, 128);  // the next tile writes where this one still leaves
}

}  // namespace warpweave::gpu
