// Operations of the modifier language over a tile of cells, per CPU tier: one call computes one
// operation for all rows and kStripColumns columns. Plain C types only: compiled with each tier's flags.
#pragma once

#include <stdint.h>

#include "attention/mods/op.h"

namespace warpweave::flex_attention {

constexpr int kStripColumns = 64;

// 32-bit values: f32, int32, or conditions as 0 and -1. Element (row, column) stands at
// data[row * row_stride + (per_column ? column : 0)].
struct StripOperand {
  const void* data;
  int row_stride;
  bool per_column;
};

struct StripArgs {
  mods::Op op;
  mods::ValueType operand;  // type of `a`
  mods::ValueType type;     // type of the result
  int rows;
  StripOperand a, b, c;
  void* out;                // [rows][kStripColumns]; may be an operand's own data
};

struct Strips {
  void (*compute)(const StripArgs& args);
  void (*copy)(StripOperand from, int rows, float* scores);
  // scores = mask ? scores : -inf, in columns [0, end).
  void (*hide)(float* scores, int rows, StripOperand mask, int end);
  // Whether any cell of columns [first, end) is true.
  bool (*any)(StripOperand mask, int rows, int first, int end);
};

extern const Strips kScalarStrips;
#if defined(__x86_64__)
extern const Strips kAvx2Strips;
extern const Strips kAvx512Strips;
#endif

}  // namespace warpweave::flex_attention
