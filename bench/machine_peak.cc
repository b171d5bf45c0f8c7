#include "machine_peak.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define WW_TWELVE(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)

int64_t run_f32_fma(int64_t iterations) {
  for (int64_t i = 0; i < iterations; ++i) {
#define WW_FMA(r) asm volatile("vfmadd231ps %%zmm31, %%zmm30, %%zmm" #r ::: "xmm" #r);
    WW_TWELVE(WW_FMA)
  }
  return iterations * 12 * 16;
}

int64_t run_bf16_dot(int64_t iterations) {
  for (int64_t i = 0; i < iterations; ++i) {
#define WW_DOT(r) asm volatile("vdpbf16ps %%zmm31, %%zmm30, %%zmm" #r ::: "xmm" #r);
    WW_TWELVE(WW_DOT)
  }
  return iterations * 12 * 32;
}

float read_memory(const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  __m512 sums[8] = {};
  for (size_t at = 0; at < bytes; at += 512) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) sums[i] = _mm512_add_ps(sums[i], _mm512_loadu_ps(p + at + 64 * i));
  }
  for (int i = 1; i < 8; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, sums[0]);
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}
#else
int64_t run_f32_fma(int64_t) { return 0; }
int64_t run_bf16_dot(int64_t) { return 0; }
float read_memory(const void*, size_t) { return 0; }
#endif
