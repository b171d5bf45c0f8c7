// AVX2 + FMA + F16C: eight lanes, f32 arithmetic for every pool format.
#include <immintrin.h>

#include "attention/backends/intel_amx/kernels_generic.h"
#include "base/float8.h"

namespace warpweave::intel_amx {
namespace {

struct Vec {
  static constexpr int kWidth = 8;
  __m256 v;

  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
  static Vec set1(float x) { return {_mm256_set1_ps(x)}; }
  static Vec zero() { return {_mm256_setzero_ps()}; }
  friend Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
  friend Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
  friend Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  static Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
  static Vec abs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
  static Vec copysign(Vec a, Vec sign) {
    return {_mm256_or_ps(abs(a).v, _mm256_and_ps(_mm256_set1_ps(-0.0f), sign.v))};
  }
  static Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
    return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
  }
  static float first(Vec a) { return _mm256_cvtss_f32(a.v); }
  static bool any_greater(Vec a, Vec b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)) != 0;
  }
  static float reduce_max(Vec a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
  }
  static float reduce_add(Vec a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
  }

  static Vec fraction(Vec x) { return {_mm256_sub_ps(x.v, _mm256_floor_ps(x.v))}; }
  // p * 2^floor(x), and an exact 0 below the range of normal numbers.
  static Vec scale_floor(Vec p, Vec x) {
    const __m256 low = _mm256_set1_ps(-126);
    const __m256i power = _mm256_slli_epi32(
        _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_floor_ps(_mm256_max_ps(x.v, low))),
                         _mm256_set1_epi32(127)), 23);
    const __m256 result = _mm256_mul_ps(p.v, _mm256_castsi256_ps(power));
    return {_mm256_andnot_ps(_mm256_cmp_ps(x.v, low, _CMP_LT_OQ), result)};
  }
  static Vec keep_bits(uint32_t bits, Vec yes, Vec no) {
    const __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lanes);
    return {_mm256_blendv_ps(no.v, yes.v, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lanes)))};
  }

  template <Element E>
  static Vec load_as(const char* src, const uint8_t* scales) {
    if constexpr (E == Element::f32) {
      return load(reinterpret_cast<const float*>(src));
    } else if constexpr (E == Element::bf16) {
      return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(src)), 16))};
    } else if constexpr (E == Element::f16) {
      return {_mm256_cvtph_ps(load_128(src))};
    } else if constexpr (E == Element::fp4_e2m1) {
      return e2m1(src) * set1(e4m3_to_f32(*scales));
    } else {
      const __m128i codes =
          _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(src)));
      return E == Element::fp8_e5m2 ? Vec{_mm256_cvtph_ps(_mm_slli_epi16(codes, 8))} : e4m3(codes);
    }
  }
  [[gnu::always_inline]] static void transpose(Vec* rows) {
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
      a[i] = _mm256_unpacklo_ps(rows[i].v, rows[i + 1].v);
      a[i + 1] = _mm256_unpackhi_ps(rows[i].v, rows[i + 1].v);
    }
    for (int i = 0; i < 8; i += 4) {
      b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
      b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      rows[i].v = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
      rows[i + 4].v = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
  }

 private:
  static __m128i load_128(const char* src) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(src));
  }

  // e4m3 codes in words: as f16 the same bits are the value times 2^-8.
  static Vec e4m3(__m128i codes) {
    const __m128i magnitude = _mm_and_si128(codes, _mm_set1_epi16(0x7f));
    const __m128i sign = _mm_slli_epi16(_mm_sub_epi16(codes, magnitude), 8);
    const __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
    const __m128i bits = _mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign),
                                      _mm_and_si128(nan, _mm_set1_epi16(0x7e00)));
    return {_mm256_mul_ps(_mm256_cvtph_ps(bits), _mm256_set1_ps(256))};
  }

  // Eight values from four bytes.
  static Vec e2m1(const char* src) {
    int32_t bits;
    memcpy(&bits, src, 4);
    const __m256i codes =
        _mm256_srlv_epi32(_mm256_set1_epi32(bits), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const __m256 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(8)), 28);
    return {_mm256_or_ps(_mm256_permutevar8x32_ps(magnitudes, codes), _mm256_castsi256_ps(sign))};
  }
};

}  // namespace

constinit const KernelSet kAvx2Kernels = f32_kernels<Vec, 2>("avx2");

}  // namespace warpweave::intel_amx
