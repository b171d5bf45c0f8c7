// AVX2 + FMA + F16C: eight lanes, f32 arithmetic for every pool format.
#include <immintrin.h>

#include "attention/backends/intel_amx/kernels_generic.h"

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

  // 2^n * poly(r), x = n ln 2 + r; exactly 0 below the range of normal numbers.
  static Vec exp(Vec x) {
    const __m256 low = _mm256_set1_ps(-87.33f);
    const __m256 y = _mm256_max_ps(x.v, low);
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(y, _mm256_set1_ps(1.44269504f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), y);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p = _mm256_fmadd_ps(r, _mm256_set1_ps(1.0f / 720), _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    const __m256i power = _mm256_slli_epi32(
        _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    const __m256 result = _mm256_mul_ps(p, _mm256_castsi256_ps(power));
    return {_mm256_andnot_ps(_mm256_cmp_ps(x.v, low, _CMP_LT_OQ), result)};
  }

  static Vec load_as(Element element, const char* src) {
    if (element == Element::f32) return load(reinterpret_cast<const float*>(src));
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src));
    if (element == Element::f16) return {_mm256_cvtph_ps(bits)};
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
  }
  static void transpose(Vec* rows) {
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
};

struct MacF32 {
  static Vec broadcast(const uint32_t* unit) {
    return {_mm256_broadcast_ss(reinterpret_cast<const float*>(unit))};
  }
  static Vec mac(Vec a, Vec b, Vec c) { return Vec::fma(a, b, c); }
};

void softmax_f32(const SoftmaxArgs& args) { softmax<Vec>(args, nullptr); }

}  // namespace

const KernelSet kAvx2Kernels = {
    "avx2",
    false,
    1,
    pack_query_f32<Vec>,
    pack_k<Vec, LoadF32<Vec>>,
    pack_v<Vec, LoadF32<Vec>>,
    gemm<Vec, MacF32, 2>,
    softmax_f32,
    merge<Vec>,
    finish_row,
    no_thread_state,
    no_thread_state};

}  // namespace warpweave::intel_amx
