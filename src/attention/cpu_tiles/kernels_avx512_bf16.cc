// AVX512-BF16: dot products of bf16 pairs, for pools whose values bf16 holds exactly (bf16, fp8, fp4).
// Queries and probabilities are rounded to bf16; sums are f32.
#include <immintrin.h>

#define WW_LANES 16
#include "attention/cpu_tiles/kernels_generic.h"

namespace warpweave::cpu_tiles {
namespace {

// _mm512_cvtne2ps_pbh puts its second argument into the low half.
inline __m512i round_32(const float* src) {
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(src + 16), _mm512_loadu_ps(src));
}

void pack_q_pairs(const float* q, int dim, int padded_dim, uint32_t* out) {
  alignas(64) float part[32];
  for (int i = 0; i < padded_dim; i += 32) {
    for (int j = 0; j < 32; ++j) part[j] = i + j < dim ? q[i + j] : 0;
    _mm512_storeu_si512(out + i / 2, round_32(part));
  }
}

// A token's row as bf16, zeros up to padded_dim.
void narrow_row(const BlockRows& block, int token, uint32_t* out) {
  if (block.element == Element::bf16 && token >= block.first && token < block.end) {
    memcpy(out, block.rows[token], 2 * static_cast<int64_t>(block.dim));
    memset(reinterpret_cast<char*>(out) + 2 * static_cast<int64_t>(block.dim), 0,
           2 * static_cast<int64_t>(block.padded_dim - block.dim));
    return;
  }
  alignas(64) float row[kMaxDim];
  widen_row(block, token, row);
  for (int i = 0; i < block.padded_dim; i += 32) _mm512_storeu_si512(out + i / 2, round_32(row + i));
}

void pack_k_pairs(const BlockRows& block, float* scratch, uint32_t* out) {
  const int units = block.padded_dim / 2;
  uint32_t* rows = reinterpret_cast<uint32_t*>(scratch);
  for (int t = 0; t < kBlockTokens; ++t) narrow_row(block, t, rows + static_cast<int64_t>(t) * units);
  transpose_block(rows, units, out);
}

// Two tokens of one dim make a unit.
void pack_v_pairs(const BlockRows& block, float* scratch, uint32_t* out) {
  alignas(64) static const uint16_t kInterleave[32] = {
      0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
      8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = _mm512_load_si512(kInterleave);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  uint32_t* even = reinterpret_cast<uint32_t*>(scratch);
  uint32_t* odd = even + block.padded_dim / 2;
  for (int t = 0; t < kBlockTokens; t += 2, out += block.padded_dim) {
    narrow_row(block, t, even);
    narrow_row(block, t + 1, odd);
    for (int d = 0; d < block.padded_dim; d += 32) {
      const __m512i a = _mm512_loadu_si512(even + d / 2), b = _mm512_loadu_si512(odd + d / 2);
      _mm512_storeu_si512(out + d, _mm512_permutex2var_epi16(a, low, b));
      _mm512_storeu_si512(out + d + 16, _mm512_permutex2var_epi16(a, high, b));
    }
  }
}

void store_pairs(const float* s, uint32_t* p) {
  for (int c = 0; c < kBlockTokens; c += 32) _mm512_storeu_si512(p + c / 2, round_32(s + c));
}

struct MultiplyPairs {
  static Floats broadcast(const uint32_t* unit) { return (Floats)_mm512_set1_epi32(*unit); }
  static Floats mac(Floats a, Floats b, Floats c) {
    return (Floats)_mm512_dpbf16_ps((__m512)c, (__m512bh)(__m512i)a, (__m512bh)(__m512i)b);
  }
};

}  // namespace

const Kernels kAvx512PairKernels = {"avx512_bf16", true, pack_q_pairs, pack_k_pairs, pack_v_pairs,
                                    gemm<MultiplyPairs, 4>, softmax<store_pairs>, scale, softcap};

}  // namespace warpweave::cpu_tiles
