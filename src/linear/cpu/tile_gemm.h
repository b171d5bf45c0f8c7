// The chunk form's products on AMX tiles, which multiply bf16 and add in f32. Included by kernel files and tests once;
// a file without AMX's flags gets the instructions written out (ops/kernels/amx_tiles.h).
//
// An f32 operand becomes the sum of two or three bf16 parts, each of its next 8 bits (Henry, Tang and Heinecke 2019).
// Of the products of parts, those below 2^-16 (of two parts; three products remain) or 2^-24 (of three; six remain) of
// the whole are left out.
//
// Pairs that a tile multiplication adds are values 16 apart along the depth, for which both operands are split without
// a shuffle.
#pragma once

#include "linear/cpu/kernels.h"
#include "ops/kernels/amx_tiles.h"
#include "ops/kernels/simd16.h"

namespace {

using namespace warpweave;

constexpr int kTileLines = 16;  // rows of a, columns of b
constexpr int kStepDepth = 32;  // of one tile multiplication
constexpr int kTileElements = kTileLines * kStepDepth;
constexpr int kTileRowBytes = 64;

WW_INLINE int tiles_of(int lines) { return (lines + kTileLines - 1) / kTileLines; }
WW_INLINE int steps_of(int depth) { return (depth + kStepDepth - 1) / kStepDepth; }

// Cycles of a core of Sapphire Rapids, by Intel's optimisation manual: a tile multiplication (8192 products) takes 16
// where three others are under way, else its latency counts; AVX-512 does 32 products in f32. Six products of parts are
// so 2.7 times, three 5.3 times as fast, less the splitting: about 10 (three parts) or 7 cycles per 32 values, of 18 or
// 14 vector operations on two ports. The products of a v head's chunk of 64 x 128 come to 66,000 cycles by six, 37,000
// by three, and 123,000 in f32.
constexpr int kDotsOfBlock = 64, kDotLatency = 52;
constexpr int kFmaPerCycle = 32;
constexpr int kSplitCycles[] = {0, 0, 7, 10};

WW_INLINE int64_t split_cycles(const LinearPacked& packed, int lines, int depth) {
  if (packed.ready) return 0;
  return int64_t{tiles_of(lines)} * kTileLines * steps_of(depth) * kSplitCycles[packed.parts] / packed.uses;
}

WW_INLINE bool tiles_pay(const LinearGemm& p) {
  // A triangle: 5/8 of the square by vectors, 3/4 by blocks of 32 x 32.
  const bool triangle = p.lower_a || p.lower_c;
  const int64_t products = int64_t{p.rows} * p.cols * p.depth;
  const int64_t by_vectors = (triangle ? products * 5 / 8 : products) / kFmaPerCycle;
  const int row_tiles = tiles_of(p.rows), col_tiles = tiles_of(p.cols);
  const int64_t whole = int64_t{row_tiles / 2} * (col_tiles / 2);
  const int64_t blocks = int64_t{(row_tiles + 1) / 2} * ((col_tiles + 1) / 2);
  int64_t dots = (whole * kDotsOfBlock + (blocks - whole) * kDotLatency) * steps_of(p.depth) * (p.parts == 3 ? 6 : 3);
  if (triangle) dots = dots * 3 / 4;
  const int64_t splits = split_cycles(*p.packed_a, p.rows, p.depth) + split_cycles(*p.packed_b, p.cols, p.depth);
  return dots + splits < by_vectors - by_vectors / 8;  // reckoned; measured, tiles lose all the same: cpu_linear_tier()
}

// 16 words of each part: `low` in their lower halves, `high` in the upper ones. Parts but the third are rounded, so
// that what is left has either sign; it then fits into 8 bits, and NaN stays NaN.
template <int kParts>
WW_INLINE void split(Vec low, Vec high, uint16_t* out) {
  const IVec half = iset1(0x8000), top = iset1(static_cast<int32_t>(0xffff0000u));
#pragma GCC unroll 3
  for (int part = 0; part < kParts; ++part, out += kTileElements) {
    IVec l = vbits(low), h = vbits(high);
    if (part < 2) {
      l = iand(iadd(l, half), top);
      h = iadd(h, half);
    }
    h = iand(h, top);
    istore(out, ior(ishr<16>(l), h));
    low = vsub(low, vfrom_bits(l));
    high = vsub(high, vfrom_bits(h));
  }
}

// Packed operands are [tiles][steps][parts] tiles; in a tile of `a`, word j of row i holds a[i, j] and a[i, j + 16] of
// its step; zeros past the matrix.
template <int kParts>
void pack_a(const LinearGemm& p) {
  const int steps = steps_of(p.depth), rows = tiles_of(p.rows) * kTileLines;
  const auto load = [](const float* at, int left) __attribute__((always_inline)) {
    return left >= 16 ? vload(at) : left > 0 ? vload_first(at, left, 0.0f)
                                             : vzero();
  };
  for (int i = 0; i < rows; ++i) {
    const int64_t tile = int64_t{i / kTileLines} * steps * kParts;
    uint16_t* out = p.packed_a->memory + tile * kTileElements + i % kTileLines * kStepDepth;
    const float* const a = p.a + i * p.a_row;
    for (int k = 0; k < p.depth; k += kStepDepth, out += kParts * kTileElements) {
      const int left = i < p.rows ? p.depth - k : 0;
      split<kParts>(load(a + k, left), load(a + k + 16, left - 16), out);
    }
  }
}

// Word n of row j holds b[j, n] and b[j + 16, n].
template <int kParts>
void pack_b(const LinearGemm& p) {
  const int steps = steps_of(p.depth);
  const auto load = [&p](int k, int col) __attribute__((always_inline)) {
    return k < p.depth ? vload(p.b + k * p.b_row + col) : vzero();
  };
  for (int k = 0; k < steps * kStepDepth; k += kStepDepth) {
    for (int j = 0; j < 16; ++j) {
      uint16_t* out = p.packed_b->memory + int64_t{k / kStepDepth} * kParts * kTileElements + j * kStepDepth;
      for (int col = 0; col < p.cols; col += kTileLines, out += int64_t{steps} * kParts * kTileElements) {
        split<kParts>(load(k + j, col), load(k + j + 16, col), out);
      }
    }
  }
}

WW_INLINE void pack(const LinearGemm& p) {
  if (!p.packed_a->ready) p.packed_a->parts == 3 ? pack_a<3>(p) : pack_a<2>(p);
  if (!p.packed_b->ready) p.packed_b->parts == 3 ? pack_b<3>(p) : pack_b<2>(p);
  p.packed_a->ready = p.packed_b->ready = true;
}

void scale_rows(const LinearGemm& p, int row, int rows, float* c) {
  for (int r = row; r < row + rows && r < p.rows; ++r, c += p.c_row) {
    const Vec factor = vset1(p.scale_c[r]);
    for (int col = 0; col < kTileLines; col += 16) vstore(c + col, vmul(vload(c + col), factor));
  }
}

// One block of c: up to two tiles by two. Sums are in tiles 0 to 3, rows of a in 4 and 5, columns of b in 6 and 7.
template <int kRows, int kCols>
struct TileBlock {
  const uint16_t* a[kRows];  // by row of tiles: the first step's first part
  const uint16_t* b[kCols];
  int64_t a_step, b_step;  // elements from step to step
  float* c;
  int64_t c_row;

  float* sums(int r, int col) const { return c + r * kTileLines * c_row + col * kTileLines; }
  void clear() const {
    WW_TILE_ZERO(0);
    if constexpr (kCols == 2) WW_TILE_ZERO(1);
    if constexpr (kRows == 2) WW_TILE_ZERO(2);
    if constexpr (kRows == 2 && kCols == 2) WW_TILE_ZERO(3);
  }
  void load_sums() const {
    WW_TILE_LOAD(0, sums(0, 0), c_row * 4);
    if constexpr (kCols == 2) WW_TILE_LOAD(1, sums(0, 1), c_row * 4);
    if constexpr (kRows == 2) WW_TILE_LOAD(2, sums(1, 0), c_row * 4);
    if constexpr (kRows == 2 && kCols == 2) WW_TILE_LOAD(3, sums(1, 1), c_row * 4);
  }
  void store_sums() const {
    WW_TILE_STORE(0, sums(0, 0), c_row * 4);
    if constexpr (kCols == 2) WW_TILE_STORE(1, sums(0, 1), c_row * 4);
    if constexpr (kRows == 2) WW_TILE_STORE(2, sums(1, 0), c_row * 4);
    if constexpr (kRows == 2 && kCols == 2) WW_TILE_STORE(3, sums(1, 1), c_row * 4);
  }
  void load_a(int step, int part) const {
    const int64_t at = step * a_step + part * kTileElements;
    WW_TILE_LOAD(4, a[0] + at, kTileRowBytes);
    if constexpr (kRows == 2) WW_TILE_LOAD(5, a[kRows - 1] + at, kTileRowBytes);
  }
  void load_b(int step, int part) const {
    const int64_t at = step * b_step + part * kTileElements;
    WW_TILE_LOAD(6, b[0] + at, kTileRowBytes);
    if constexpr (kCols == 2) WW_TILE_LOAD(7, b[kCols - 1] + at, kTileRowBytes);
  }
  void dots() const {
    WW_TILE_DOT_BF16(0, 4, 6);
    if constexpr (kCols == 2) WW_TILE_DOT_BF16(1, 4, 7);
    if constexpr (kRows == 2) WW_TILE_DOT_BF16(2, 5, 6);
    if constexpr (kRows == 2 && kCols == 2) WW_TILE_DOT_BF16(3, 5, 7);
  }
  // Parts 0 to 2 from high to low; in an order that loads few of them twice.
  template <int kParts>
  void step(int k) const {
    load_a(k, 0);
    if constexpr (kParts == 3) {
      load_b(k, 2);
      dots();
    }
    load_b(k, 1);
    dots();
    load_b(k, 0);
    dots();
    if constexpr (kParts == 3) {
      load_a(k, 2);
      dots();
    }
    load_a(k, 1);
    dots();
    if constexpr (kParts == 3) {
      load_b(k, 1);
      dots();
    }
  }
};

// Tiles [row_tile, + kRows) x [col_tile, + kCols).
template <int kRows, int kCols>
void multiply_block(const LinearGemm& p, int row_tile, int col_tile) {
  const int row = row_tile * kTileLines, col = col_tile * kTileLines;
  if (p.lower_c && col >= row + kRows * kTileLines) return;
  const int steps = steps_of(p.depth);
  TileBlock<kRows, kCols> block;
  block.a_step = int64_t{p.packed_a->parts} * kTileElements;
  block.b_step = int64_t{p.packed_b->parts} * kTileElements;
  for (int r = 0; r < kRows; ++r) block.a[r] = p.packed_a->memory + (row_tile + r) * steps * block.a_step;
  for (int c = 0; c < kCols; ++c) block.b[c] = p.packed_b->memory + (col_tile + c) * steps * block.b_step;
  block.c = p.c + row * p.c_row + col;
  block.c_row = p.c_row;
  if (p.keep_c) {
    for (int c = 0; c < kCols && p.scale_c != nullptr; ++c) {
      scale_rows(p, row, kRows * kTileLines, block.c + c * kTileLines);
    }
    block.load_sums();
  } else {
    block.clear();
  }
  const int reach = p.lower_a ? steps_of(row + kRows * kTileLines) : steps;
  for (int k = 0; k < steps && k < reach; ++k) {
    if (p.parts == 3) {
      block.template step<3>(k);
    } else {
      block.template step<2>(k);
    }
  }
  block.store_sums();
}

template <int kCols>
void multiply_columns(const LinearGemm& p, int col_tile) {
  const int row_tiles = tiles_of(p.rows);
  int row_tile = 0;
  for (; row_tile + 2 <= row_tiles; row_tile += 2) multiply_block<2, kCols>(p, row_tile, col_tile);
  if (row_tile < row_tiles) multiply_block<1, kCols>(p, row_tile, col_tile);
}

// `kAlways`: of every shape, for tests.
template <bool kAlways>
bool tile_gemm(const LinearGemm& p) {
  if (p.parts == 0 || !(kAlways || tiles_pay(p))) return false;
  pack(p);
  const int col_tiles = tiles_of(p.cols);
  int col_tile = 0;
  for (; col_tile + 2 <= col_tiles; col_tile += 2) multiply_columns<2>(p, col_tile);
  if (col_tile < col_tiles) multiply_columns<1>(p, col_tile);
  return true;
}

void enter_tiles() {
  AmxTileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.row_bytes[tile] = kTileRowBytes, config.rows[tile] = kTileLines;
  WW_TILE_CONFIGURE(&config);
}

void leave_tiles() { WW_TILE_RELEASE(); }

template <bool kAlways = false>
constexpr LinearTileKernels linear_tile_kernels() {
  return {.gemm = tile_gemm<kAlways>, .enter = enter_tiles, .leave = leave_tiles};
}

}  // namespace
