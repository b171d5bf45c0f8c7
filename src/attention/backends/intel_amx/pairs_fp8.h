// fp8 and fp4 pools widened to pairs of bf16, in which all their values are exact (an e2m1 value times
// its e4m3 block scale has six significant bits). Needs AVX512-VBMI. Loaders as in kernels_generic.h.
//
// fp8: 64 codes at a time are looked up as the low and the high bytes of their bf16, in tables of 128
// magnitudes; words whose bytes stand in the order 0 2 1 3 then yield the pairs (0, 1) and (2, 3) by
// shifts alone.
#pragma once

#include "attention/backends/intel_amx/pairs_bf16.h"

namespace warpweave::intel_amx {
namespace {

struct alignas(64) Fp8Table {
  uint8_t low[128], high[128];  // of the bf16 of magnitude i
};

constexpr Fp8Table make_fp8_table(const Float8Table& values) {
  Fp8Table table{};
  for (int i = 0; i < 128; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, values.values[i]);
    table.low[i] = static_cast<uint8_t>(bits >> 16);
    table.high[i] = static_cast<uint8_t>(bits >> 24);
  }
  return table;
}

constexpr Fp8Table kE4m3Bytes = make_fp8_table(kE4m3Table);
constexpr Fp8Table kE5m2Bytes = make_fp8_table(kE5m2Table);

// Words of codes in the order 0 2 1 3 -> the pairs of bf16 (0, 1) and (2, 3).
template <Element E>
struct WidenFp8 {
  __m512i low[2], high[2];

  WidenFp8() {
    const Fp8Table& table = E == Element::fp8_e4m3 ? kE4m3Bytes : kE5m2Bytes;
    for (int i = 0; i < 2; ++i) {
      low[i] = _mm512_load_si512(table.low + 64 * i);
      high[i] = _mm512_load_si512(table.high + 64 * i);
    }
  }
  void pairs(__m512i codes, Vec* first, Vec* second) const {
    const __m512i lows = _mm512_permutex2var_epi8(low[0], codes, low[1]);
    // high | (codes & 0x80)
    const __m512i highs = _mm512_ternarylogic_epi32(
        _mm512_permutex2var_epi8(high[0], codes, high[1]), codes, _mm512_set1_epi8(-128), 0xf8);
    const __m512i even = _mm512_set1_epi16(0xff);
    // (lows & even) | (highs << 8), and (lows >> 8) | (highs & ~even)
    *first = Vec::of(_mm512_ternarylogic_epi32(_mm512_slli_epi16(highs, 8), lows, even, 0xf8));
    *second = Vec::of(_mm512_ternarylogic_epi32(_mm512_srli_epi16(lows, 8), highs, even, 0xf4));
  }
};

template <Element E>
struct LoadFp8 {
  static constexpr int kElementsPerUnit = 2, kUnitsPerWord = 2, kUnitRows = 2, kVectors = 4;
  static constexpr int kWords = 8;

  template <bool kFull>
  [[gnu::always_inline]] static void k_words(const BlockRows& block, int token, int unit, Vec* words) {
    transposed_words<kFull>(block, token, unit * 2, block.dim, words);
  }
  struct K {
    WidenFp8<E> widen;
    K(const BlockRows&, int, int) {}
    void expand(Vec word, int, Vec* out) const {
      const __m512i order = _mm512_broadcast_i32x4(
          _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
      widen.pairs(_mm512_shuffle_epi8(word.bits(), order), &out[0], &out[1]);
    }
  };
  // Four tokens x 64 columns. Words of four columns are first dealt out to the lanes so that the
  // unpacking within lanes ends in column order.
  template <bool kFull>
  static void v_units(const BlockRows& block, int pair, int d, Vec (*out)[kVectors]) {
    const __m512i deal = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i t[4];
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_permutexvar_epi32(deal, load_bytes<kFull>(block, 2 * pair + i, d, block.dim));
    }
    const __m512i even_low = _mm512_unpacklo_epi8(t[0], t[2]);
    const __m512i even_high = _mm512_unpackhi_epi8(t[0], t[2]);
    const __m512i odd_low = _mm512_unpacklo_epi8(t[1], t[3]);
    const __m512i odd_high = _mm512_unpackhi_epi8(t[1], t[3]);
    const WidenFp8<E> widen;
    widen.pairs(_mm512_unpacklo_epi16(even_low, odd_low), &out[0][0], &out[1][0]);
    widen.pairs(_mm512_unpackhi_epi16(even_low, odd_low), &out[0][1], &out[1][1]);
    widen.pairs(_mm512_unpacklo_epi16(even_high, odd_high), &out[0][2], &out[1][2]);
    widen.pairs(_mm512_unpackhi_epi16(even_high, odd_high), &out[0][3], &out[1][3]);
  }
};

inline Vec pair_of(Vec first, Vec second) {
  // Both are exact in bf16: their low halves are zero.
  return Vec::of(_mm512_or_si512(_mm512_srli_epi32(first.bits(), 16), second.bits()));
}

struct LoadFp4 {
  static constexpr int kElementsPerUnit = 2, kUnitsPerWord = 4, kUnitRows = 1, kVectors = 2;
  static constexpr int kWords = 8;

  template <bool kFull>
  [[gnu::always_inline]] static void k_words(const BlockRows& block, int token, int unit, Vec* words) {
    transposed_words<kFull>(block, token, unit, block.dim / 2, words);
  }
  // A word is eight elements, half of a block.
  struct K {
    Vec scales[4];  // of the four blocks from `unit` on, tokens along the lanes

    K(const BlockRows& block, int token, int unit) {
      alignas(64) uint32_t bytes[16] = {};
      const int first = unit / 8, wanted = block.dim / 16 - first;
      for (int i = 0; i < 16 && token + i < block.count; ++i) {
        const uint8_t* src = scales_of(block, token + i) + first;
        if (wanted >= 4) {
          memcpy(&bytes[i], src, 4);
        } else {
          for (int j = 0; j < wanted; ++j) bytes[i] |= static_cast<uint32_t>(src[j]) << 8 * j;
        }
      }
      const __m512i all = _mm512_load_si512(bytes);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m512i codes = _mm512_and_si512(_mm512_srli_epi32(all, 8 * i), _mm512_set1_epi32(0xff));
        scales[i] = Vec::e4m3(_mm512_cvtepi32_epi16(codes));
      }
    }
    void expand(Vec word, int i, Vec* out) const {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const Vec first = Vec::e2m1_of(_mm512_srli_epi32(word.bits(), 8 * j)) * scales[i / 2];
        const Vec second = Vec::e2m1_of(_mm512_srli_epi32(word.bits(), 8 * j + 4)) * scales[i / 2];
        out[j] = pair_of(first, second);
      }
    }
  };
  template <bool kFull>
  static void v_units(const BlockRows& block, int pair, int d, Vec (*out)[kVectors]) {
    using Load = LoadF32<Vec, Element::fp4_e2m1>;
    for (int c = 0; c < kVectors; ++c) {
      out[0][c] = pair_of(Load::template load<kFull>(block, 2 * pair, d + 16 * c),
                          Load::template load<kFull>(block, 2 * pair + 1, d + 16 * c));
    }
  }
};

// What a bf16 tier serves; see kernels.h.
inline void pack_k_pairs(const BlockRows& block, uint32_t* out, Prefetch& prefetch) {
  switch (block.element) {
    case Element::fp8_e4m3: return pack_k<Vec, LoadFp8<Element::fp8_e4m3>>(block, out, prefetch);
    case Element::fp8_e5m2: return pack_k<Vec, LoadFp8<Element::fp8_e5m2>>(block, out, prefetch);
    case Element::fp4_e2m1: return pack_k<Vec, LoadFp4>(block, out, prefetch);
    default: return pack_k<Vec, LoadBf16>(block, out, prefetch);
  }
}

inline void pack_v_pairs(const BlockRows& block, uint32_t* out, Prefetch& prefetch) {
  switch (block.element) {
    case Element::fp8_e4m3: return pack_v<Vec, LoadFp8<Element::fp8_e4m3>>(block, out, prefetch);
    case Element::fp8_e5m2: return pack_v<Vec, LoadFp8<Element::fp8_e5m2>>(block, out, prefetch);
    case Element::fp4_e2m1: return pack_v<Vec, LoadFp4>(block, out, prefetch);
    default: return pack_v<Vec, LoadBf16>(block, out, prefetch);
  }
}

// The parts of a set that the bf16 tiers share.
constexpr KernelSet pair_kernels(const char* name) {
  KernelSet set{};
  set.name = name;
  set.bf16_pairs = true;
  set.pack_query = pack_query_pairs;
  set.pack_k = pack_k_pairs;
  set.pack_v = pack_v_pairs;
  set.sum_lanes = sum_lanes<Vec>;
  set.merge = merge<Vec>;
  set.finish = finish_row<Vec>;
  return set;
}

}  // namespace
}  // namespace warpweave::intel_amx
