// Sixteen f32 lanes on AVX-512 (F, BW, DQ, VL). See simd16.h.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#define WW_INLINE static inline __attribute__((always_inline))

namespace {

using Vec = __m512;
using IVec = __m512i;

WW_INLINE Vec vzero() { return _mm512_setzero_ps(); }
WW_INLINE Vec vset1(float x) { return _mm512_set1_ps(x); }
WW_INLINE Vec vload(const float* p) { return _mm512_loadu_ps(p); }
WW_INLINE void vstore(float* p, Vec v) { _mm512_storeu_ps(p, v); }
WW_INLINE __mmask16 vmask_first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
WW_INLINE Vec vload_first(const float* p, int n, float fill) {
  return _mm512_mask_loadu_ps(vset1(fill), vmask_first(n), p);
}
WW_INLINE void vstore_first(float* p, Vec v, int n) {
  _mm512_mask_storeu_ps(p, vmask_first(n), v);
}
WW_INLINE Vec vadd(Vec a, Vec b) { return _mm512_add_ps(a, b); }
WW_INLINE Vec vsub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
WW_INLINE Vec vmul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
WW_INLINE Vec vdiv(Vec a, Vec b) { return _mm512_div_ps(a, b); }
WW_INLINE Vec vfma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
WW_INLINE Vec vmin(Vec a, Vec b) { return _mm512_min_ps(a, b); }
WW_INLINE Vec vmax(Vec a, Vec b) { return _mm512_max_ps(a, b); }
WW_INLINE Vec vabs(Vec a) { return _mm512_abs_ps(a); }
// a < b ? x : y
WW_INLINE Vec vselect_lt(Vec a, Vec b, Vec x, Vec y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
// Bit i set where lane i of a equals b.
WW_INLINE uint32_t vequal_bits(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }

WW_INLINE IVec vbits(Vec v) { return _mm512_castps_si512(v); }
WW_INLINE Vec vfrom_bits(IVec v) { return _mm512_castsi512_ps(v); }
WW_INLINE Vec vto_float(IVec v) { return _mm512_cvtepi32_ps(v); }
WW_INLINE IVec vto_int(Vec v) { return _mm512_cvtps_epi32(v); }
WW_INLINE IVec iset1(int32_t x) { return _mm512_set1_epi32(x); }
WW_INLINE IVec iload(const void* p) { return _mm512_loadu_si512(p); }
WW_INLINE IVec iload_u8(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
WW_INLINE IVec iload_i8(const int8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
WW_INLINE IVec iload_u16(const uint16_t* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
WW_INLINE void istore(void* p, IVec v) { _mm512_storeu_si512(p, v); }
WW_INLINE void istore_u16(uint16_t* p, IVec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(v));
}
// Lanes hold values below 256.
WW_INLINE void istore_u8(uint8_t* p, IVec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
}
WW_INLINE IVec iadd(IVec a, IVec b) { return _mm512_add_epi32(a, b); }
WW_INLINE IVec isub(IVec a, IVec b) { return _mm512_sub_epi32(a, b); }
WW_INLINE IVec iand(IVec a, IVec b) { return _mm512_and_si512(a, b); }
WW_INLINE IVec ior(IVec a, IVec b) { return _mm512_or_si512(a, b); }
WW_INLINE IVec ixor(IVec a, IVec b) { return _mm512_xor_si512(a, b); }
template <int kBits>
WW_INLINE IVec ishl(IVec a) { return _mm512_slli_epi32(a, kBits); }
template <int kBits>
WW_INLINE IVec ishr(IVec a) { return _mm512_srli_epi32(a, kBits); }
// a > b ? x : y, signed.
// Each byte, 0 to 15, becomes that element of a table of 16.
WW_INLINE IVec ilookup(const uint8_t* table, IVec places) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), places);
}
WW_INLINE IVec iselect_gt(IVec a, IVec b, IVec x, IVec y) {
  return _mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(a, b), y, x);
}

WW_INLINE Vec vload_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
WW_INLINE void vstore_half(uint16_t* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// A fixed tree, the same on every tier: halves are added until one lane is left.
WW_INLINE float vreduce_add(Vec v) {
  __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
WW_INLINE float vreduce_max(Vec v) {
  __m256 a = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}
WW_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace
