// Packing of bf16 operands as pairs, shared by the AVX512-BF16 and AMX tiers. The packed forms are
// the ones that VDPBF16PS and TDPBF16PS both read.
#pragma once

#include "attention/backends/intel_amx/vec_avx512.h"

namespace warpweave::intel_amx {
namespace {

inline __m512i round_pairs(__m512 low, __m512 high) {
  // _mm512_cvtne2ps_pbh puts its second argument into the low half.
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

inline void pack_query_pairs(const QueryArgs& args) {
  const __m512 scale = _mm512_set1_ps(args.scale);
  for (int i = 0; i < args.padded_dim; i += 32) {
    const int left = args.dim - i;
    const __mmask32 mask = left >= 32 ? ~0u : (1u << (left > 0 ? left : 0)) - 1;
    const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), args.src + i);
    const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), args.src + i + 16);
    _mm512_storeu_si512(args.out + i / 2,
                        round_pairs(_mm512_mul_ps(low, scale), _mm512_mul_ps(high, scale)));
  }
}

inline __m512i load_pairs(const BlockRows& block, int token, int d) {
  const int left = block.dim - d;
  if (token >= block.count || left <= 0) return _mm512_setzero_si512();
  const char* src = row_of(block, token) + d * 2;
  if (left >= 32) return _mm512_loadu_si512(src);
  return _mm512_maskz_loadu_epi16((1u << left) - 1, src);
}

// Of K a unit is two dims of one token, of V two tokens of one dim.
struct LoadPairs {
  static constexpr int kElementsPerUnit = 2;
  static constexpr int kValueVectors = 2;
  static int units(const BlockRows& block) { return block.padded_dim / 2; }
  static Vec k_units(const BlockRows& block, int token, int unit) {
    return {_mm512_castsi512_ps(load_pairs(block, token, 2 * unit))};
  }
  static void v_units(const BlockRows& block, int pair, int d, Vec* out) {
    alignas(64) static const uint16_t kInterleave[32] = {
        0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
        8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_load_si512(kInterleave);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const __m512i even = load_pairs(block, 2 * pair, d), odd = load_pairs(block, 2 * pair + 1, d);
    out[0].v = _mm512_castsi512_ps(_mm512_permutex2var_epi16(even, low, odd));
    out[1].v = _mm512_castsi512_ps(_mm512_permutex2var_epi16(even, high, odd));
  }
};

inline void store_probability_pairs(const float* s, uint32_t* p, int cols) {
  for (int c = 0; c < cols; c += 32) {
    _mm512_storeu_si512(p + c / 2, round_pairs(_mm512_loadu_ps(s + c), _mm512_loadu_ps(s + c + 16)));
  }
}

inline void softmax_pairs(const SoftmaxArgs& args) { softmax<Vec>(args, store_probability_pairs); }

}  // namespace
}  // namespace warpweave::intel_amx
