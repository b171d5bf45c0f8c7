// GEMMs of compressed panels with rows rounded to 8 bits, multiplied as integers. A tier's .cc includes this file
// once and is compiled with what its dot product needs: VNNI, AVX-512 or AVX2 without it, or plain C++.
//
// Integer sums are exact and every element adds its groups of 32 in ascending k, so the bits of a row do not depend on
// the rows beside it.
#pragma once

#include <string.h>

#include "ops/kernels/linear_kernels.h"
#include "ops/kernels/quant_panel.h"
#include "ops/kernels/simd16.h"

namespace {

using namespace warpweave;

#if defined(__AVX512F__)
constexpr int kInt8Rows = 8;
#elif defined(__AVX2__)
constexpr int kInt8Rows = 3;
#else
constexpr int kInt8Rows = 2;
#endif

// acc + the four products of each lane's unsigned bytes with x's signed ones, of -127 to 127. Tiers without such an
// instruction have WW_SUMS_OF_16_BITS: products of two bytes, pair_sums(), are added up as long as they fit 16 bits,
// then join_pairs(). Bytes above 127 do not fit: less 128 they are multiplied by their magnitudes, with x turned where
// they are negative.
#if defined(__AVX512VNNI__)
WW_INLINE IVec dot4(IVec acc, IVec w, int32_t x) { return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(x)); }
#elif defined(__AVX512F__)
#define WW_SUMS_OF_16_BITS
WW_INLINE IVec pair_sums(IVec w, int32_t x) { return _mm512_maddubs_epi16(w, _mm512_set1_epi32(x)); }
WW_INLINE IVec add_pairs(IVec a, IVec b) { return _mm512_add_epi16(a, b); }
WW_INLINE IVec join_pairs(IVec acc, IVec pairs) { return iadd(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1))); }

struct SignedWord {
  IVec magnitudes;
  __mmask64 negative;
  explicit SignedWord(IVec bytes) : magnitudes(_mm512_abs_epi8(bytes)), negative(_mm512_movepi8_mask(bytes)) {}
};
WW_INLINE IVec pair_sums(const SignedWord& w, int32_t x) {
  const IVec all = iset1(x);
  return _mm512_maddubs_epi16(w.magnitudes, _mm512_mask_sub_epi8(all, w.negative, _mm512_setzero_si512(), all));
}
#elif defined(__AVX2__)
#define WW_SUMS_OF_16_BITS
WW_INLINE IVec pair_sums(IVec w, int32_t x) {
  const __m256i all = _mm256_set1_epi32(x);
  return {_mm256_maddubs_epi16(w.lo, all), _mm256_maddubs_epi16(w.hi, all)};
}
WW_INLINE IVec add_pairs(IVec a, IVec b) { return {_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)}; }
WW_INLINE IVec join_pairs(IVec acc, IVec pairs) {
  const __m256i one = _mm256_set1_epi16(1);
  return iadd(acc, {_mm256_madd_epi16(pairs.lo, one), _mm256_madd_epi16(pairs.hi, one)});
}

struct SignedWord {
  IVec magnitudes, bytes;
  explicit SignedWord(IVec w) : magnitudes{_mm256_abs_epi8(w.lo), _mm256_abs_epi8(w.hi)}, bytes(w) {}
};
WW_INLINE IVec pair_sums(const SignedWord& w, int32_t x) {
  const __m256i all = _mm256_set1_epi32(x);
  return {_mm256_maddubs_epi16(w.magnitudes.lo, _mm256_sign_epi8(all, w.bytes.lo)),
          _mm256_maddubs_epi16(w.magnitudes.hi, _mm256_sign_epi8(all, w.bytes.hi))};
}
#else
WW_INLINE IVec dot4(IVec acc, IVec w, int32_t x) {
  int8_t of_x[4];
  memcpy(of_x, &x, sizeof of_x);
  for (int lane = 0; lane < 16; ++lane) {
    uint8_t of_w[4];
    const int32_t word = w.v[lane];
    memcpy(of_w, &word, sizeof of_w);
    for (int b = 0; b < 4; ++b) acc.v[lane] += of_w[b] * of_x[b];
  }
  return acc;
}
#endif

#define WW_MEMBER inline __attribute__((always_inline))

// A prepared row (linear_kernels.h).
struct Int8Row {
  const unsigned char* codes;
  const float* scales;
  const float* scaled_sums;
  const int32_t* sums;

  Int8Row() = default;
  Int8Row(const unsigned char* row, int64_t k)
      : codes(row),
        scales(reinterpret_cast<const float*>(row + k)),
        scaled_sums(scales + k / 32),
        sums(reinterpret_cast<const int32_t*>(row + k + k / 4)) {}
  WW_INLINE int32_t word_at(const unsigned char* codes, int64_t k) {
    int32_t word;
    memcpy(&word, codes + k, sizeof word);
    return word;
  }
  int32_t sum_of_group(int64_t g) const { return sums[2 * g] + sums[2 * g + 1]; }
};

// The eight words of 32 values of k, four to a byte product.
WW_INLINE void nibble_words(const PanelWord* codes, IVec* out) {
  const IVec low = iset1(0x0f0f0f0f);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const IVec both = iload(codes[j]);
    out[2 * j] = iand(both, low);
    out[2 * j + 1] = iand(ishr<4>(both), low);
  }
}

// What a format does with group `g` of its block: words() once, add() for every row, with the group's scale of the row
// and the scaled sum of its codes. `products` are of codes less kCentre.
//
// Of weights that are scale * (code - kCentre).
struct Int8Scaled {
  static constexpr bool kHasOffset = false;
  Vec scale;
  WW_MEMBER Vec add(Vec acc, Vec products, float x_scale, float) const {
    return vfma(scale, vmul(products, vset1(x_scale)), acc);
  }
};
// Of weights that are scale * code + offset.
struct Int8Offset {
  static constexpr bool kHasOffset = true;
  static constexpr int kCentre = 0;
  Vec scale, offset;
  WW_MEMBER Vec add(Vec acc, Vec products, float x_scale, float x_scaled_sum) const {
    acc = vfma(scale, vmul(products, vset1(x_scale)), acc);
    return vfma(offset, vset1(x_scaled_sum), acc);
  }
};

struct Int8Q8_0 : Int8Scaled {
  using Panel = PanelQ8_0;
  static constexpr int kMostCode = 255;
  static constexpr int kCentre = 128;
  WW_MEMBER void words(const Panel& block, int, IVec* out) {
    scale = vload_half(block.d);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) out[j] = iload(block.codes[j]);
  }
};
struct Int8Q4_0 : Int8Scaled {
  using Panel = PanelQ4_0;
  static constexpr int kMostCode = 15;
  static constexpr int kCentre = 8;
  WW_MEMBER void words(const Panel& block, int, IVec* out) {
    scale = vload_half(block.d);
    nibble_words(block.codes, out);
  }
};
struct Int8Q4_1 : Int8Offset {
  using Panel = PanelQ4_1;
  static constexpr int kMostCode = 15;
  WW_MEMBER void words(const Panel& block, int, IVec* out) {
    scale = vload_half(block.d);
    offset = vload_half(block.m);
    nibble_words(block.codes, out);
  }
};
// The fifth bits of word `at` and those after it.
template <int kAt>
WW_INLINE void add_fifth_bits(IVec high, IVec* out) {
  const IVec top = iset1(0x10101010);
  if constexpr (kAt < 4) out[kAt] = ior(out[kAt], iand(ishl<4 - kAt>(high), top));
  if constexpr (kAt == 4) out[kAt] = ior(out[kAt], iand(high, top));
  if constexpr (kAt > 4) out[kAt] = ior(out[kAt], iand(ishr<kAt - 4>(high), top));
  if constexpr (kAt < 7) add_fifth_bits<kAt + 1>(high, out);
}

template <class KPanel, bool kFifthBit>
struct Int8ScaleMin : Int8Offset {
  using Panel = KPanel;
  static constexpr int kMostCode = kFifthBit ? 31 : 15;
  WW_MEMBER void words(const Panel& block, int g, IVec* out) {
    scale = vmul(vload_half(block.d), vto_float(iload_u8(block.scales[g])));
    offset = vsub(vzero(), vmul(vload_half(block.dmin), vto_float(iload_u8(block.mins[g]))));
    nibble_words(block.codes + 4 * g, out);
    if constexpr (kFifthBit) add_fifth_bits<0>(iload(block.high[g]), out);
  }
};

using Int8Q4K = Int8ScaleMin<PanelQ4K, false>;
using Int8Q5K = Int8ScaleMin<PanelQ5K, true>;

// Codes of iq4 become bytes that are their values plus 128, as q8_0's are.
WW_INLINE void iq4_words(const PanelWord* codes, IVec* out) {
  nibble_words(codes, out);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) out[j] = ilookup(kIQ4Bytes, out[j]);
}
struct Int8IQ4 : Int8Scaled {
  static constexpr int kMostCode = 255;
  static constexpr int kCentre = 128;
};
struct Int8IQ4NL : Int8IQ4 {
  using Panel = PanelIQ4NL;
  WW_MEMBER void words(const Panel& block, int, IVec* out) {
    scale = vload_half(block.d);
    iq4_words(block.codes, out);
  }
};
struct Int8IQ4XS : Int8IQ4 {
  using Panel = PanelIQ4XS;
  WW_MEMBER void words(const Panel& block, int g, IVec* out) {
    scale = vmul(vload_half(block.d), vto_float(iload_i8(block.scales[g])));
    iq4_words(block.codes + 4 * g, out);
  }
};

// Asks for what stands a little further on, a group's share of a block at a time and all of it: blocks are read at many
// places at once, which CPUs do not foresee (q6_k had 48 % of the speed of plain reads, and has 93 % with it, 81 % with
// half as far; Zen 5, 2026-11-25).
template <class Panel>
WW_INLINE void prefetch_share(const Panel* block, int g) {
  constexpr int kAheadBytes = 8192, kLineBytes = 64, kShareBytes = sizeof(Panel) / (Panel::kElements / 32);
  const auto* const at = reinterpret_cast<const unsigned char*>(block) + g * kShareBytes + kAheadBytes;
#pragma GCC unroll 16
  for (int line = 0; line < (kShareBytes + kLineBytes - 1) / kLineBytes; ++line) prefetch(at + line * kLineBytes);
}

// acc + the products of kWords words of codes up to kMostCode with as many of a row.
template <int kMostCode, int kWords>
WW_INLINE IVec add_products(IVec acc, const IVec* w, const unsigned char* x) {
#if defined(WW_SUMS_OF_16_BITS)
  constexpr int kFitting = 32767 / (2 * kMostCode * 127), kTogether = kFitting < kWords ? kFitting : kWords;
  static_assert(kTogether >= 1 && kWords % kTogether == 0);
#pragma GCC unroll 8
  for (int j = 0; j < kWords; j += kTogether) {
    IVec pairs = pair_sums(w[j], Int8Row::word_at(x, 4 * j));
#pragma GCC unroll 8
    for (int i = 1; i < kTogether; ++i) pairs = add_pairs(pairs, pair_sums(w[j + i], Int8Row::word_at(x, 4 * (j + i))));
    acc = join_pairs(acc, pairs);
  }
#else
#pragma GCC unroll 8
  for (int j = 0; j < kWords; ++j) acc = dot4(acc, w[j], Int8Row::word_at(x, 4 * j));
#endif
  return acc;
}

// The products of rows with a group's words, of codes less kCentre.
template <class Format, int kRows>
WW_INLINE void group_products(const Int8Row (&x)[kRows], int64_t first, const IVec (&w)[8], IVec (&dots)[kRows]) {
#if defined(WW_SUMS_OF_16_BITS)
  if constexpr (Format::kMostCode > 127) {
    static_assert(Format::kCentre == 128);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) dots[r] = iset1(0);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const SignedWord word(ixor(w[j], iset1(static_cast<int32_t>(0x80808080u))));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        dots[r] = join_pairs(dots[r], pair_sums(word, Int8Row::word_at(x[r].codes, first + 4 * j)));
      }
    }
    return;
  } else
#endif
  {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const IVec start = iset1(-Format::kCentre * x[r].sum_of_group(first / 32));
      dots[r] = add_products<Format::kMostCode, 8>(start, w, x[r].codes + first);
    }
  }
}

// Groups of 32 with one scale of the weights.
template <class Format, int kRows>
void int8_rows(const Int8Tile& t, int first_row, int panel) {
  using Panel = typename Format::Panel;
  constexpr int kGroups = Panel::kElements / 32;
  Int8Row x[kRows];
  Vec acc[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    x[r] = Int8Row(t.x + (first_row + r) * t.x_stride_bytes, t.k);
    acc[r] = vzero();
  }
  const auto* block = reinterpret_cast<const Panel*>(t.weights + panel * t.panel_bytes);
  for (int64_t k = 0; k < t.k; k += Panel::kElements, ++block) {
    for (int g = 0; g < kGroups; ++g) {
      Format format;
      IVec w[8];
      format.words(*block, g, w);
      prefetch_share(block, g);
      const int64_t first = k + g * 32, at = first / 32;
      IVec dots[kRows];
      group_products<Format>(x, first, w, dots);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        acc[r] = format.add(acc[r], vto_float(dots[r]), x[r].scales[at], x[r].scaled_sums[at]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) vstore(t.acc + (first_row + r) * t.acc_stride + panel * kPanelCols, acc[r]);
}

// q6_k: two scales to a group, of products of codes less 32.
struct Int8Q6K {
  using Panel = PanelQ6K;
  static constexpr bool kHasOffset = false;
  static constexpr int kCentre = 32;
  Vec scales[2], d;
  WW_MEMBER void words(const Panel& block, int g, IVec* out);
  WW_MEMBER Vec add(Vec acc, Vec first, Vec second, float x_scale) const {
    const Vec both = vfma(scales[0], first, vmul(scales[1], second));
    return vfma(d, vmul(both, vset1(x_scale)), acc);
  }
};
WW_INLINE void q6_words(const PanelQ6K& block, int g, IVec* out) {
  const IVec top = iset1(0x30303030);
  nibble_words(block.low + 4 * g, out);
#pragma GCC unroll 2
  for (int j = 0; j < 2; ++j) {
    const IVec high = iload(block.high[2 * g + j]);
    out[4 * j] = ior(out[4 * j], iand(ishl<4>(high), top));
    out[4 * j + 1] = ior(out[4 * j + 1], iand(ishl<2>(high), top));
    out[4 * j + 2] = ior(out[4 * j + 2], iand(high, top));
    out[4 * j + 3] = ior(out[4 * j + 3], iand(ishr<2>(high), top));
  }
}

void Int8Q6K::words(const Panel& block, int g, IVec* out) {
  d = vload_half(block.d);
  for (int half = 0; half < 2; ++half) scales[half] = vto_float(iload_i8(block.scales[2 * g + half]));
  q6_words(block, g, out);
}

template <int kRows>
void int8_rows_q6(const Int8Tile& t, int first_row, int panel) {
  Int8Row x[kRows];
  Vec acc[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    x[r] = Int8Row(t.x + (first_row + r) * t.x_stride_bytes, t.k);
    acc[r] = vzero();
  }
  const auto* block = reinterpret_cast<const PanelQ6K*>(t.weights + panel * t.panel_bytes);
  for (int64_t k = 0; k < t.k; k += 256, ++block) {
    for (int g = 0; g < 8; ++g) {
      Int8Q6K format;
      IVec w[8];
      format.words(*block, g, w);
      prefetch_share(block, g);
      const int64_t first = k + g * 32, at = first / 32;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        IVec dots[2];
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const IVec start = iset1(-Int8Q6K::kCentre * x[r].sums[2 * at + half]);
          dots[half] = add_products<63, 4>(start, w + 4 * half, x[r].codes + first + 16 * half);
        }
        acc[r] = format.add(acc[r], vto_float(dots[0]), vto_float(dots[1]), x[r].scales[at]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) vstore(t.acc + (first_row + r) * t.acc_stride + panel * kPanelCols, acc[r]);
}

template <class Format, int kRows>
void int8_panels(const Int8Tile& t, int first_row) {
  for (int p = 0; p < t.panels; ++p) {
    if constexpr (__is_same(Format, Int8Q6K)) {
      int8_rows_q6<kRows>(t, first_row, p);
    } else {
      int8_rows<Format, kRows>(t, first_row, p);
    }
  }
}

// kRows or fewer.
template <class Format, int kRows>
void int8_group(const Int8Tile& t, int first_row, int rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return int8_group<Format, kRows - 1>(t, first_row, rows);
  }
  int8_panels<Format, kRows>(t, first_row);
}

template <class Format>
void int8_tile(const Int8Tile& t) {
  const int groups = (t.rows + kInt8Rows - 1) / kInt8Rows;
  for (int g = 0, row = 0; g < groups; ++g) {
    const int rows = (t.rows - row + groups - g - 1) / (groups - g);
    int8_group<Format, kInt8Rows>(t, row, rows);
    row += rows;
  }
}

#if defined(__AVX2__)
WW_INLINE IVec nearest(Vec x) { return vto_int(x); }
#else
WW_INLINE IVec nearest(Vec x) {  // vto_int cuts here; adding 1.5 * 2^23 rounds
  const Vec magic = vset1(12582912.0f);
  return vto_int(vsub(vadd(x, magic), magic));
}
#endif

// Codes of 16 values into `codes`; their sum.
WW_INLINE int32_t quantize_half(Vec x, float inverse, unsigned char* codes) {
  const IVec rounded = nearest(vmul(x, vset1(inverse)));
  istore_u8(codes, iand(rounded, iset1(255)));
  return static_cast<int32_t>(vreduce_add(vto_float(rounded)));
}

// To the nearest, ties to even; the largest magnitude of a group becomes 127. A group with a NaN or an infinity gets a
// scale that is NaN, and with it the row's results.
void quantize_row(const float* x, int64_t k, unsigned char* row) {
  auto* const scales = reinterpret_cast<float*>(row + k);
  float* const scaled_sums = scales + k / 32;
  auto* const sums = reinterpret_cast<int32_t*>(row + k + k / 4);
  for (int64_t g = 0; g < k / 32; ++g) {
    const Vec low = vload(x + 32 * g), high = vload(x + 32 * g + 16);
    // Zero, or NaN: a maximum may lose what a sum keeps.
    const float poison = vreduce_add(vadd(vmul(low, vzero()), vmul(high, vzero())));
    const float top = vreduce_max(vmax(vabs(low), vabs(high)));
    const bool usable = poison == 0 && top > 1e-30f;  // below, 127 / top is no number
    const float inverse = usable ? 127.0f / top : 0.0f;
    const Vec first = usable ? low : vzero(), second = usable ? high : vzero();
    sums[2 * g] = quantize_half(first, inverse, row + 32 * g);
    sums[2 * g + 1] = quantize_half(second, inverse, row + 32 * g + 16);
    scales[g] = usable ? top * (1.0f / 127.0f) : poison;
    scaled_sums[g] = scales[g] * static_cast<float>(sums[2 * g] + sums[2 * g + 1]);
  }
}

constexpr Int8Kernels int8_kernels() {
  return {int8_tile<Int8Q8_0>, int8_tile<Int8Q4_0>,  int8_tile<Int8Q4_1>,  int8_tile<Int8Q4K>, int8_tile<Int8Q5K>,
          int8_tile<Int8Q6K>,  int8_tile<Int8IQ4NL>, int8_tile<Int8IQ4XS>, quantize_row};
}

}  // namespace
