// Weight matrices in e4m3 with scales: element (r, c) is code(r, c) times the scale of its block, and
// blocks are whole rows, whole matrices or rectangles such as 128 x 128. The definition that the GPU's
// kernels (ops/cuda/fp8.h) and the CPU, which widens such matrices, share.
//
// Quantising: a block's scale is its largest magnitude over 448, e4m3's largest value (1 for a block
// of zeros), a code is the element over that scale, rounded to nearest even.
#pragma once

#include <cstdint>
#include <vector>

#include "base/threads.h"
#include "warpweave/status.h"
#include "warpweave/tensor.h"

namespace warpweave {

// The scale of element (r, c) is values[r / block_rows * stride + c / block_cols].
struct WeightScales {
  std::vector<float> values;
  int64_t block_rows = 1;
  int64_t block_cols = 1;
  int64_t stride = 0;

  float at(int64_t row, int64_t col) const { return values[row / block_rows * stride + col / block_cols]; }
};

struct Fp8Matrix {
  TensorView codes;    // fp8_e4m3 or fp8_e5m2 [rows, cols]
  WeightScales scales;
};

// Codes of `weight` [rows, cols] (any type that dequantize_row reads) into `codes`. Errors: `data_loss`
// for an element that is not finite.
Result<WeightScales> quantize_fp8(const TensorView& weight, int64_t block_rows, int64_t block_cols, uint8_t* codes,
                                  ThreadTeam& team);

// Whether a code of an e4m3 matrix is a NaN.
bool has_nan_e4m3(const TensorView& codes, ThreadTeam& team);

// Row `row` of `codes` in f32: one rounding, that of code times scale.
void widen_fp8_row(const TensorView& codes, const WeightScales& scales, int64_t row, float* out);

}  // namespace warpweave
