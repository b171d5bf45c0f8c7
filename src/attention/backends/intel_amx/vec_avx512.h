// Sixteen f32 lanes for the AVX-512 tiers; include inside files compiled with AVX512 F/BW/DQ/VL.
#pragma once

#include <immintrin.h>

#include "attention/backends/intel_amx/kernels_generic.h"
#include "base/float8.h"

namespace warpweave::intel_amx {
namespace {

struct Vec {
  static constexpr int kWidth = 16;
  __m512 v;

  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
  static Vec set1(float x) { return {_mm512_set1_ps(x)}; }
  static Vec zero() { return {_mm512_setzero_ps()}; }
  friend Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
  static Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
  static Vec copysign(Vec a, Vec sign) {
    const __m512 mask = _mm512_set1_ps(-0.0f);
    return {_mm512_or_ps(_mm512_andnot_ps(mask, a.v), _mm512_and_ps(mask, sign.v))};
  }
  static Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
  }
  static float first(Vec a) { return _mm512_cvtss_f32(a.v); }
  static bool any_greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ) != 0; }
  static float reduce_max(Vec a) { return _mm512_reduce_max_ps(a.v); }
  static float reduce_add(Vec a) { return _mm512_reduce_add_ps(a.v); }

  // x - floor(x), and p * 2^floor(x), which for x = -inf is an exact 0.
  static Vec fraction(Vec x) {
    return {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  }
  static Vec scale_floor(Vec p, Vec x) { return {_mm512_scalef_ps(p.v, x.v)}; }
  static Vec keep_bits(uint32_t bits, Vec yes, Vec no) {
    return {_mm512_mask_blend_ps(static_cast<__mmask16>(bits), no.v, yes.v)};
  }

  static Vec of(__m512i bits) { return {_mm512_castsi512_ps(bits)}; }
  __m512i bits() const { return _mm512_castps_si512(v); }

#ifdef __AVX512BF16__
  static __m512i round_pairs(__m512 low, __m512 high) {
    // _mm512_cvtne2ps_pbh puts its second argument into the low half.
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
  }
  static void store_pairs(uint32_t* p, Vec low, Vec high) {
    _mm512_storeu_si512(p, round_pairs(low.v, high.v));
  }
#endif

  template <Element E>
  static Vec load_as(const char* src, const uint8_t* scales) {
    if constexpr (E == Element::f32) {
      return load(reinterpret_cast<const float*>(src));
    } else if constexpr (E == Element::bf16) {
      return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_256(src)), 16))};
    } else if constexpr (E == Element::f16) {
      return {_mm512_cvtph_ps(load_256(src))};
    } else if constexpr (E == Element::fp4_e2m1) {
      return e2m1(src) * set1(e4m3_to_f32(*scales));
    } else {
      const __m256i codes =
          _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src)));
      return E == Element::fp8_e5m2 ? Vec{_mm512_cvtph_ps(_mm256_slli_epi16(codes, 8))} : e4m3(codes);
    }
  }

  // e4m3 codes in words: as f16 the same bits are the value times 2^-8.
  static Vec e4m3(__m256i codes) {
    const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi16(0x7f));
    const __m256i sign = _mm256_slli_epi16(_mm256_sub_epi16(codes, magnitude), 8);
    const __m512 value = _mm512_mul_ps(
        _mm512_cvtph_ps(_mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign)),
        _mm512_set1_ps(256));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x7f));
    return {_mm512_mask_mov_ps(value, nan, _mm512_set1_ps(__builtin_nanf("")))};
  }

  // Sixteen values from eight bytes.
  static Vec e2m1(const char* src) {
    uint32_t low, high;
    memcpy(&low, src, 4);
    memcpy(&high, src + 4, 4);
    const __m512i words = _mm512_inserti64x4(_mm512_set1_epi32(static_cast<int>(low)),
                                             _mm256_set1_epi32(static_cast<int>(high)), 1);
    const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    return e2m1_of(_mm512_srlv_epi32(words, shifts));
  }
  // The low four bits of each lane.
  static Vec e2m1_of(__m512i codes) {
    const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                         -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    return {_mm512_permutexvar_ps(codes, values)};
  }

  // 16 x 16 units of 32 bits.
  [[gnu::always_inline]] static void transpose(Vec* rows) {
    __m512 a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
      a[i] = _mm512_unpacklo_ps(rows[i].v, rows[i + 1].v);
      a[i + 1] = _mm512_unpackhi_ps(rows[i].v, rows[i + 1].v);
    }
    for (int i = 0; i < 16; i += 4) {
      b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
      b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    // b[4g + j], 128-bit lane q: column 4q + j of rows 4g..4g+3.
    for (int j = 0; j < 4; ++j) {
      const __m512 even_low = _mm512_shuffle_f32x4(b[j], b[4 + j], 0x88);     // lanes 0, 2
      const __m512 odd_low = _mm512_shuffle_f32x4(b[j], b[4 + j], 0xdd);      // lanes 1, 3
      const __m512 even_high = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0x88);
      const __m512 odd_high = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0xdd);
      rows[j].v = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
      rows[4 + j].v = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
      rows[8 + j].v = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
      rows[12 + j].v = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    }
  }

 private:
  static __m256i load_256(const char* src) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
  }
};

}  // namespace
}  // namespace warpweave::intel_amx
