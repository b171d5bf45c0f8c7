// bf16 operands as pairs, shared by the AVX512-BF16 and AMX tiers: the packed forms are the ones that
// VDPBF16PS and TDPBF16PS both read. Loaders as described in kernels_generic.h.
#pragma once

#include "attention/backends/intel_amx/vec_avx512.h"

namespace warpweave::intel_amx {
namespace {

inline void pack_query_pairs(const QueryArgs& args) {
  for (int i = 0; i < args.padded_dim; i += 32) {
    const int left = args.dim - i;
    const __mmask32 mask = left >= 32 ? ~0u : (1u << (left > 0 ? left : 0)) - 1;
    const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), args.src + i);
    const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), args.src + i + 16);
    _mm512_storeu_si512(args.out + i / 2, Vec::round_pairs(low, high));
  }
}

// 64 bytes of a row from byte `begin` on; zeros past the `bytes` it has or the block's end.
template <bool kFull>
inline __m512i load_bytes(const BlockRows& block, int token, int begin, int bytes) {
  if constexpr (kFull) return _mm512_loadu_si512(row_of(block, token) + begin);
  const int left = bytes - begin;
  if (token >= block.count || left <= 0) return _mm512_setzero_si512();
  const char* src = row_of(block, token) + begin;
  if (left >= 64) return _mm512_loadu_si512(src);
  return _mm512_maskz_loadu_epi8((uint64_t{1} << left) - 1, src);
}

// Eight 32-bit words from byte `begin` on of 16 tokens, transposed: words[i] holds word i of each token.
template <bool kFull>
[[gnu::always_inline]] inline void transposed_words(const BlockRows& block, int token, int begin,
                                                    int bytes, Vec* words) {
  // Tokens are put together so that the last step leaves them in order.
  __m512 rows[8], a[8], b[8];
  const char* const* tokens = block.rows + token;
  const int64_t offset = block.head_offset + begin;
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const int low = i % 4 + i / 4 * 8, high = low + 4;
    __m256i first, second;
    if constexpr (kFull) {
      first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tokens[low] + offset));
      second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tokens[high] + offset));
    } else {
      first = _mm512_castsi512_si256(load_bytes<false>(block, token + low, begin, bytes));
      second = _mm512_castsi512_si256(load_bytes<false>(block, token + high, begin, bytes));
    }
    rows[i] = _mm512_castsi512_ps(_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
  }
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int j = 0; j < 4; ++j) {
    words[j].v = _mm512_shuffle_f32x4(b[j], b[4 + j], 0x88);
    words[4 + j].v = _mm512_shuffle_f32x4(b[j], b[4 + j], 0xdd);
  }
}

// Of K a unit is two dims of one token, of V two tokens of one dim.
struct LoadBf16 {
  static constexpr int kElementsPerUnit = 2, kUnitsPerWord = 1, kUnitRows = 1, kVectors = 2;
  static constexpr int kWords = 8;

  template <bool kFull>
  [[gnu::always_inline]] static void k_words(const BlockRows& block, int token, int unit, Vec* words) {
    transposed_words<kFull>(block, token, unit * 4, block.dim * 2, words);
  }
  struct K {
    K(const BlockRows&, int, int) {}
    void expand(Vec word, int, Vec* out) const { out[0] = word; }
  };
  template <bool kFull>
  static void v_units(const BlockRows& block, int pair, int d, Vec (*out)[kVectors]) {
    alignas(64) static const uint16_t kInterleave[32] = {
        0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
        8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_load_si512(kInterleave);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const __m512i even = load_bytes<kFull>(block, 2 * pair, d * 2, block.dim * 2);
    const __m512i odd = load_bytes<kFull>(block, 2 * pair + 1, d * 2, block.dim * 2);
    out[0][0] = Vec::of(_mm512_permutex2var_epi16(even, low, odd));
    out[0][1] = Vec::of(_mm512_permutex2var_epi16(even, high, odd));
  }
};

}  // namespace
}  // namespace warpweave::intel_amx
