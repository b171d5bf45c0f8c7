// Rows of f32 rounded to e4m3 for the GEMM behind, straight from the sums that the GEMM before left: what a norm, or a copy
// in the serving type, and quantize_rows() with scales of rows (fp8.h) would make of them, bit for bit, in one kernel.
// Enqueued on `stream`, no errors. A row's bits do not depend on the other rows.
#pragma once

#include <cstdint>

#include "ops/cuda/gpu_ops.h"

namespace warpweave::gpu {

// Where they are left.
struct RowCodes {
  uint8_t* codes = nullptr;  // [rows, cols]; null: nowhere
  float* scales = nullptr;   // [rows]
};

struct CodeSumsCall {
  const float* x = nullptr;   // [rows, cols] dense
  PartialSums partials = {};  // added to x first
  float* x_out = nullptr;     // that sum: x itself, or null
  int64_t rows = 0;
  int64_t cols = 0;               // see code_sums_takes()
  const float* weight = nullptr;  // [cols] of an RMS norm; null: rows as they are
  float weight_offset = 0;
  float eps = 1e-6f;
  DType dtype = DType::bf16;      // f16 or bf16: values are rounded to it first
  void* kept = nullptr;           // [.., cols] of `dtype`: kept[keep[i]] = row i before its codes; null: not wanted
  const int32_t* keep = nullptr;  // [rows]
  RowCodes to;
};
bool code_sums_takes(int64_t cols);
void code_sums(const CodeSumsCall& call, Stream stream);

}  // namespace warpweave::gpu
