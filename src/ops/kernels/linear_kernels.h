// What a CPU tier provides to PackedLinear: plain structs and function pointers, no STL, so that
// tier files may include it.
#pragma once

#include <stdint.h>

#include "ops/compute_types.h"

namespace warpweave {

inline constexpr int kPanelCols = 16;     // output features of one panel

// acc[rows, panels * 16] = (load_acc ? acc : 0) + x[rows, k] * panels^T, each element one chain of
// sums over ascending k.
struct GemmTile {
  const void* x = nullptr;               // f32, or bf16 for bf16_dot
  int64_t x_stride = 0;                  // in elements
  int rows = 0;
  int k = 0;                             // a multiple of 32 for bf16_dot
  const unsigned char* weights = nullptr;  // the first panel, at the tile's first k
  int64_t panel_bytes = 0;               // from one panel to the next
  int panels = 0;                        // >= 1
  float* acc = nullptr;
  int64_t acc_stride = 0;
  bool load_acc = false;
};

// A row of k activations rounded to 8 bits, k a multiple of 32: codes int8[k], then of every group of 32 a scale f32
// and scale * sum of its codes f32, then of every 16 the sum of their codes int32. x ~ scale * code.
constexpr int64_t int8_row_bytes(int64_t k) { return k + k / 2; }

// acc[rows, panels * 16] = x[rows, k] * panels^T of compressed panels.
struct Int8Tile {
  const unsigned char* x = nullptr;      // such rows
  int64_t x_stride_bytes = 0;
  int rows = 0;
  int64_t k = 0;                         // of the whole row
  const unsigned char* weights = nullptr;
  int64_t panel_bytes = 0;
  int panels = 0;
  float* acc = nullptr;
  int64_t acc_stride = 0;
};

using Int8TileFn = void (*)(const Int8Tile&);

struct Int8Kernels {
  Int8TileFn q8_0, q4_0, q4_1, q4_k, q5_k, q6_k, iq4_nl, iq4_xs;
  void (*quantize)(const float* x, int64_t k, unsigned char* row);
};

// The largest value of a row and its first column.
struct RowBest {
  float value = -__builtin_inff();
  int32_t column = 0;
};

// y = activation(acc + bias + addend), converted and cut to `cols`.
struct FinishTile {
  const float* acc = nullptr;
  int64_t acc_stride = 0;
  int rows = 0;
  const float* bias = nullptr;           // panels * 16, or null
  GluActivation glu = GluActivation::none;
  void* y = nullptr;                     // the tile's first element
  int64_t y_stride = 0;                  // in elements
  bool y_is_bf16 = false;
  bool accumulate = false;               // f32 only
  int cols = 0;                          // columns of y in this tile
  RowBest* best = nullptr;               // [rows], taught this tile's columns; f32 y only
  int first_col = 0;                     // of the tile in y, for `best`
  const float* addend =
      nullptr;  // at the tile's first column; null: none. Under a GLU up's are addend_up behind gate's
  int64_t addend_stride = 0;
  const int32_t* addend_rows = nullptr;  // [rows] whose row of the addend joins, -1: none
  int64_t addend_up = 0;
};

// One k range of one compressed panel, widened to the layout of a plain panel.
// k_begin and k are multiples of the format's block.
using DequantizeFn = void (*)(const unsigned char* panel, int64_t k_begin, int k, void* out);

struct DequantizeKernels {
  DequantizeFn q8_0, q4_0, q4_1, q4_k, q5_k, q6_k, iq4_nl, iq4_xs;
};

using GemmTileFn = void (*)(const GemmTile&);

struct LinearKernels {
  GemmTileFn f32;        // x f32, weights f32
  GemmTileFn bf16;       // x f32, weights bf16 pairs, widened
  GemmTileFn f16;        // x f32, weights f16, widened
  GemmTileFn bf16_dot;   // x bf16, weights bf16 pairs; null: the tier has no bf16 unit
  void (*finish)(const FinishTile&);
  DequantizeKernels to_f32;    // [k][16] f32
  DequantizeKernels to_bf16;   // [k/2][16][2] bf16
  int tile_panels;             // preferred panels of a tile
  const Int8Kernels* int8;     // of compressed panels; null: the tier has no unit for bytes
};

extern const Int8Kernels kInt8Scalar;

extern const LinearKernels kLinearScalar;
#if defined(__x86_64__)
extern const Int8Kernels kInt8Avx2, kInt8Avx512, kInt8Vnni, kInt8Amx;
extern const LinearKernels kLinearAvx2;
extern const LinearKernels kLinearAvx512;
extern const LinearKernels kLinearAvx512Vnni;  // of CPUs with VNNI and no bf16 unit
extern const LinearKernels kLinearAvx512Bf16;
extern const LinearKernels kLinearAmxBf16;
extern const LinearKernels kLinearAmxInt8;     // with tiles for bytes, too

// bf16_dot alone, for the tiers that add a bf16 unit to the avx512 kernels.
void gemm_bf16_dot_avx512(const GemmTile& tile);
void gemm_bf16_dot_amx(const GemmTile& tile);
#endif

}  // namespace warpweave
