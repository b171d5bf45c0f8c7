// Sixteen f32 lanes for the AVX-512 tiers; include inside files compiled with AVX512 F/BW/DQ/VL.
#pragma once

#include <immintrin.h>

#include "attention/backends/intel_amx/kernels_generic.h"

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
  static float reduce_max(Vec a) { return _mm512_reduce_max_ps(a.v); }
  static float reduce_add(Vec a) { return _mm512_reduce_add_ps(a.v); }

  // 2^n * poly(r), x = n ln 2 + r; the clamp makes -inf an exact 0.
  static Vec exp(Vec x) {
    const __m512 y = _mm512_max_ps(x.v, _mm512_set1_ps(-120.0f));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(y, _mm512_set1_ps(1.44269504f)),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), y);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(1.0f / 720), _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return {_mm512_scalef_ps(p, n)};
  }

  static Vec load_as(Element element, const char* src) {
    if (element == Element::f32) return load(reinterpret_cast<const float*>(src));
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
    if (element == Element::f16) return {_mm512_cvtph_ps(bits)};
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }

  // 16 x 16 units of 32 bits.
  static void transpose(Vec* rows) {
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
};

}  // namespace
}  // namespace warpweave::intel_amx
