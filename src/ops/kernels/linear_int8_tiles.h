// The GEMMs of linear_int8.h on AMX tiles: 16 rows times one panel, a group of 32 values of k at a time. Panels are
// expanded to bytes in ranges that stay in L1 while all rows go by.
//
// The integer sums of a group are exact in both files, and each joins a row in the same order by the same operations,
// so both give the same bits and few rows, for which expanding does not pay, are left to the other.
#pragma once

#include "ops/kernels/amx_tiles.h"
#include "ops/kernels/linear_int8.h"

namespace {

constexpr int kTileRows = 16;
constexpr int kFewRows = 12;        // fewer are faster without tiles (8 are by up to 1.4, 16 are not)
constexpr int kRangeGroups = 16;    // groups expanded at a time, of so many panels
constexpr int kRangePanels = 4;

// Tile multiplications to a group: a format with two scales needs the sums of both halves.
template <class Format>
constexpr int kDots = __is_same(Format, Int8Q6K) ? 2 : 1;

// A group of a panel: words of 16 columns x 4 bytes with signs, codes less the format's kCentre.
template <class Format>
struct TileGroup {
  alignas(64) int8_t words[8][64];
  Format format;
};

// Of 16 rows, those past the last are zero.
struct RowScales {
  alignas(64) float scales[kRangeGroups][kTileRows];
  alignas(64) float scaled_sums[kRangeGroups][kTileRows];
};

// A range of one panel and the rows it meets.
template <class Format>
struct TileRange {
  const TileGroup<Format>* groups;
  int count;                  // of groups
  const unsigned char* x;     // codes of the first row at the range's first k
  int64_t x_stride_bytes;
  int rows;                   // 1 to 16
  const RowScales* scales;
  float* acc;
  int64_t acc_stride;
  bool load_acc;
};

// Tiles 0 and 1: sums, 4 and 5: rows, 6 and 7: words.
template <class Format>
void configure_tiles(int rows) {
  warpweave::AmxTileConfig config;
  const auto shape = [&config](int tile, int tile_rows, int row_bytes) {
    config.rows[tile] = static_cast<uint8_t>(tile_rows);
    config.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
  };
  for (int i = 0; i < 2; ++i) {
    shape(i, rows, 64);
    shape(4 + i, rows, 32 / kDots<Format>);
    shape(6 + i, 8 / kDots<Format>, 64);
  }
  WW_TILE_CONFIGURE(&config);
}

// Group `index` of the panel's row of blocks.
template <class Format>
WW_INLINE void expand_group(const unsigned char* panel, int64_t index, TileGroup<Format>* out) {
  using Panel = typename Format::Panel;
  constexpr int kGroups = Panel::kElements / 32;
  // Adding 128 - kCentre stays within a byte; flipping the top bit then takes 128 off.
  const IVec to_centre = iset1(static_cast<int32_t>((128u - Format::kCentre) * 0x01010101u));
  const IVec top = iset1(static_cast<int32_t>(0x80808080u));
  IVec words[8];
  out->format.words(reinterpret_cast<const Panel*>(panel)[index / kGroups], static_cast<int>(index % kGroups), words);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) istore(out->words[j], ixor(iadd(words[j], to_centre), top));
}

// A part of the input: rows, and groups of each.
struct InputPart {
  int first_row, rows;
  int64_t first_group;
  int groups;
};

template <class Format>
void gather_scales(const Int8Tile& t, const InputPart& part, RowScales* out) {
  if (part.rows < kTileRows) memset(out, 0, sizeof *out);
  for (int r = 0; r < part.rows; ++r) {
    const Int8Row x(t.x + (part.first_row + r) * t.x_stride_bytes, t.k);
    for (int g = 0; g < part.groups; ++g) {
      out->scales[g][r] = x.scales[part.first_group + g];
      if constexpr (Format::kHasOffset) out->scaled_sums[g][r] = x.scaled_sums[part.first_group + g];
    }
  }
}

using TileSums = int32_t[kTileRows][16];

template <class Format>
WW_INLINE void add_group(const TileRange<Format>& t, int g, const TileSums* sums, Vec* acc) {
  const Format format = t.groups[g].format;
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    const Vec products = vto_float(iload(sums[0][r]));
    const float scale = t.scales->scales[g][r];
    if constexpr (kDots<Format> == 2) {
      acc[r] = format.add(acc[r], products, vto_float(iload(sums[1][r])), scale);
    } else {
      acc[r] = format.add(acc[r], products, scale, t.scales->scaled_sums[g][r]);
    }
  }
}

// Two tile multiplications at a time, so that one's sums are added while the tiles work on the other's.
template <class Format>
void multiply_range(const TileRange<Format>& t) {
  constexpr int kBytes = 32 / kDots<Format>;  // of a row, to a tile multiplication
  alignas(64) TileSums sums[2] = {};
  Vec acc[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) acc[r] = t.load_acc && r < t.rows ? vload(t.acc + r * t.acc_stride) : vzero();
  const int dots = t.count * kDots<Format>;
  const auto words_of = [&t](int dot) {
    return t.groups[dot / kDots<Format>].words + dot % kDots<Format> * (8 / kDots<Format>);
  };
  for (int i = 0; i < dots; i += 2) {
    WW_TILE_ZERO(0);
    WW_TILE_LOAD(4, t.x + i * kBytes, t.x_stride_bytes);
    WW_TILE_LOAD(6, words_of(i), 64);
    WW_TILE_DOT(0, 4, 6);
    WW_TILE_STORE(0, sums[0], 64);
    if (i + 1 < dots) {
      WW_TILE_ZERO(1);
      WW_TILE_LOAD(5, t.x + (i + 1) * kBytes, t.x_stride_bytes);
      WW_TILE_LOAD(7, words_of(i + 1), 64);
      WW_TILE_DOT(1, 5, 7);
      WW_TILE_STORE(1, sums[1], 64);
    }
    add_group(t, i / kDots<Format>, sums, acc);
    if (kDots<Format> == 1 && i + 1 < dots) add_group(t, i + 1, sums + 1, acc);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    if (r < t.rows) vstore(t.acc + r * t.acc_stride, acc[r]);
  }
}

// Up to kRangePanels panels from `first_panel` on, all rows.
template <class Format>
void int8_tiles_of_panels(const Int8Tile& t, int first_panel, int panels) {
  TileGroup<Format> expanded[kRangePanels][kRangeGroups];
  RowScales scales;
  int configured = 0;
  const int64_t groups = t.k / 32;
  for (int64_t first = 0; first < groups; first += kRangeGroups) {
    const int count = static_cast<int>(groups - first < kRangeGroups ? groups - first : kRangeGroups);
    for (int p = 0; p < panels; ++p) {
      const unsigned char* const panel = t.weights + (first_panel + p) * t.panel_bytes;
      for (int g = 0; g < count; ++g) expand_group<Format>(panel, first + g, &expanded[p][g]);
    }
    for (int row = 0; row < t.rows; row += kTileRows) {
      const int rows = t.rows - row < kTileRows ? t.rows - row : kTileRows;
      if (rows != configured) configure_tiles<Format>(rows);
      configured = rows;
      gather_scales<Format>(t, {row, rows, first, count}, &scales);
      for (int p = 0; p < panels; ++p) {
        multiply_range<Format>({.groups = expanded[p],
                                .count = count,
                                .x = t.x + row * t.x_stride_bytes + first * 32,
                                .x_stride_bytes = t.x_stride_bytes,
                                .rows = rows,
                                .scales = &scales,
                                .acc = t.acc + row * t.acc_stride + (first_panel + p) * kPanelCols,
                                .acc_stride = t.acc_stride,
                                .load_acc = first > 0});
      }
    }
  }
  WW_TILE_RELEASE();
}

#if defined(__AMX_INT8__)
inline const Int8Kernels& without_tiles() { return kInt8Vnni; }
#else
inline const Int8Kernels& without_tiles() { return kInt8Scalar; }
#endif

template <class Format, Int8TileFn Int8Kernels::* kMember>
void int8_tile_on_tiles(const Int8Tile& t) {
  if (t.rows < kFewRows) return (without_tiles().*kMember)(t);
  for (int p = 0; p < t.panels; p += kRangePanels) {
    int8_tiles_of_panels<Format>(t, p, t.panels - p < kRangePanels ? t.panels - p : kRangePanels);
  }
}

constexpr Int8Kernels int8_tile_kernels() {
  using K = Int8Kernels;
  return {int8_tile_on_tiles<Int8Q8_0, &K::q8_0>,    int8_tile_on_tiles<Int8Q4_0, &K::q4_0>,
          int8_tile_on_tiles<Int8Q4_1, &K::q4_1>,    int8_tile_on_tiles<Int8Q4K, &K::q4_k>,
          int8_tile_on_tiles<Int8Q5K, &K::q5_k>,     int8_tile_on_tiles<Int8Q6K, &K::q6_k>,
          int8_tile_on_tiles<Int8IQ4NL, &K::iq4_nl>, int8_tile_on_tiles<Int8IQ4XS, &K::iq4_xs>,
          quantize_row};
}

}  // namespace
