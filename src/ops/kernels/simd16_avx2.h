// Sixteen f32 lanes as two AVX2 registers (needs FMA and F16C). See simd16.h.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#define WW_INLINE static inline __attribute__((always_inline))

namespace {

struct Vec {
  __m256 lo, hi;
};
struct IVec {
  __m256i lo, hi;
};

WW_INLINE Vec vzero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
WW_INLINE Vec vset1(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
WW_INLINE Vec vload(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
WW_INLINE void vstore(float* p, Vec v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
WW_INLINE Vec vload_first(const float* p, int n, float fill) {
  alignas(32) float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = i < n ? p[i] : fill;
  return vload(lanes);
}
WW_INLINE void vstore_first(float* p, Vec v, int n) {
  alignas(32) float lanes[16];
  vstore(lanes, v);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}
#define WW_BINARY(name, op) \
  WW_INLINE Vec name(Vec a, Vec b) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }
WW_BINARY(vadd, _mm256_add_ps)
WW_BINARY(vsub, _mm256_sub_ps)
WW_BINARY(vmul, _mm256_mul_ps)
WW_BINARY(vdiv, _mm256_div_ps)
WW_BINARY(vmin, _mm256_min_ps)
WW_BINARY(vmax, _mm256_max_ps)
#undef WW_BINARY
WW_INLINE Vec vfma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
WW_INLINE Vec vabs(Vec a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
WW_INLINE Vec vselect_lt(Vec a, Vec b, Vec x, Vec y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
WW_INLINE uint32_t vequal_bits(Vec a, Vec b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ))) |
         static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ))) << 8;
}

WW_INLINE IVec vbits(Vec v) { return {_mm256_castps_si256(v.lo), _mm256_castps_si256(v.hi)}; }
WW_INLINE Vec vfrom_bits(IVec v) {
  return {_mm256_castsi256_ps(v.lo), _mm256_castsi256_ps(v.hi)};
}
WW_INLINE Vec vto_float(IVec v) { return {_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)}; }
WW_INLINE IVec vto_int(Vec v) { return {_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi)}; }
WW_INLINE IVec iset1(int32_t x) {
  const __m256i v = _mm256_set1_epi32(x);
  return {v, v};
}
WW_INLINE IVec iload(const void* p) {
  const __m256i* v = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
WW_INLINE void istore(void* p, IVec v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v.lo);
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, v.hi);
}
WW_INLINE IVec iload_u8(const uint8_t* p) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))};
}
WW_INLINE IVec iload_i8(const int8_t* p) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))};
}
WW_INLINE IVec iload_u16(const uint16_t* p) {
  const __m128i* v = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(v)),
          _mm256_cvtepu16_epi32(_mm_loadu_si128(v + 1))};
}
// The low 16 bits of each lane; lanes hold values below 65536.
WW_INLINE void istore_u16(uint16_t* p, IVec v) {
  const __m256i packed = _mm256_packus_epi32(v.lo, v.hi);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
// Lanes hold values below 256.
WW_INLINE void istore_u8(uint8_t* p, IVec v) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(v.lo, v.hi), 0xd8);
  const __m128i bytes =
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
#define WW_BINARY(name, op) \
  WW_INLINE IVec name(IVec a, IVec b) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }
WW_BINARY(iadd, _mm256_add_epi32)
WW_BINARY(isub, _mm256_sub_epi32)
WW_BINARY(iand, _mm256_and_si256)
WW_BINARY(ior, _mm256_or_si256)
WW_BINARY(ixor, _mm256_xor_si256)
#undef WW_BINARY
template <int kBits>
WW_INLINE IVec ishl(IVec a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
WW_INLINE IVec ishr(IVec a) {
  return {_mm256_srli_epi32(a.lo, kBits), _mm256_srli_epi32(a.hi, kBits)};
}
// Each byte, 0 to 15, becomes that element of a table of 16.
WW_INLINE IVec ilookup(const uint8_t* table, IVec places) {
  const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(values, places.lo), _mm256_shuffle_epi8(values, places.hi)};
}
WW_INLINE IVec iselect_gt(IVec a, IVec b, IVec x, IVec y) {
  return {_mm256_blendv_epi8(y.lo, x.lo, _mm256_cmpgt_epi32(a.lo, b.lo)),
          _mm256_blendv_epi8(y.hi, x.hi, _mm256_cmpgt_epi32(a.hi, b.hi))};
}

WW_INLINE Vec vload_half(const uint16_t* p) {
  const __m128i* v = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(v)), _mm256_cvtph_ps(_mm_loadu_si128(v + 1))};
}
WW_INLINE void vstore_half(uint16_t* p, Vec v) {
  __m128i* out = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(out, _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(out + 1, _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT));
}

WW_INLINE float vreduce_add(Vec v) {
  const __m256 a = _mm256_add_ps(v.lo, v.hi);
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
WW_INLINE float vreduce_max(Vec v) {
  const __m256 a = _mm256_max_ps(v.lo, v.hi);
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}
WW_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace
