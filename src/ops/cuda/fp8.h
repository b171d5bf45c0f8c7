// e4m3 in GPU memory: matrices with scales (ops/fp8_matrix.h on the host), and rows of activations
// rounded to 8 bits as they come.
//
// A weight matrix [out_features, in_features] has its codes row-major and f32 scales
//   Fp8Scaling::row    [out_features]: one a row; a scale of the whole tensor is one of every row
//   Fp8Scaling::block  [ceil(out / 128)][fp8_scale_stride(in)]: one a block of 128 x 128
// Activations get a scale a row, or one for every 128 columns of it; either layout is cuBLASLt's
// (CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F; VEC128_32F and BLK128x128_32F).
// Calls enqueue on `stream`, allocate nothing, and may be captured.
#pragma once

#include <cstdint>

#include "ops/cuda/gpu_ops.h"
#include "warpweave/tensor.h"

namespace warpweave::gpu {

struct GpuLinear;
struct GemmCall;

inline constexpr int64_t kFp8Block = 128;
inline constexpr int64_t kFp8Columns = 16;  // in_features is a multiple

// Floats from one row of block scales to the next: whole 16 bytes.
constexpr int64_t fp8_scale_stride(int64_t in_features) { return ((in_features + kFp8Block - 1) / kFp8Block + 3) / 4 * 4; }

// Scales of a matrix.
constexpr int64_t fp8_scales(Fp8Scaling scaling, int64_t rows, int64_t in_features) {
  return scaling == Fp8Scaling::row ? rows : (rows + kFp8Block - 1) / kFp8Block * fp8_scale_stride(in_features);
}

// Whether this GPU has the GEMMs that weights in 8 bits need: compute capability 9.0 or newer.
bool keeps_fp8();

// codes[to] = x[row] / scale, to nearest even; scale = the row's largest magnitude / 448.
struct CodeRowsCall {
  const void* x = nullptr;        // [rows, cols]
  DType dtype = DType::bf16;      // f16 or bf16
  int64_t rows = 0;
  int64_t cols = 0;               // a multiple of kFp8Columns
  // For experts (experts.h): a row's codes and scale go to places place_of[row * copies + j], j < copies, and the kernel behind
  // it begins as spread_rows()' does. Null: to place `row`.
  const int32_t* place_of = nullptr;
  int copies = 1;
  uint8_t* codes = nullptr;       // [places, cols]
  float* scales = nullptr;        // [places]
};
void code_rows(const CodeRowsCall& call, Stream stream);

// Codes and scales of a made-up matrix, rounded to `dtype` first: the bits that ops/fp8_matrix.h makes of it.
inline constexpr int kNoTurn = -1;
struct RandomCodes {
  RandomMatrix rule;
  DType dtype = DType::bf16;
  int64_t rows = 0;
  int64_t cols = 0;               // a multiple of kFp8Columns
  Fp8Scaling scaling = Fp8Scaling::row;
  int turn = kNoTurn;             // 0 and 1: code rows alternate with another matrix's as RandomTurns' do (experts.h)
  uint8_t* codes = nullptr;
  float* scales = nullptr;        // zeros where no block is
};
void fill_random_codes(const RandomCodes& call, Stream stream);

// Rows with either scaling: of a row, or of kFp8Block columns of it.
struct QuantizeRowsCall {
  const void* x = nullptr;   // [rows, cols] dense
  DType dtype = DType::bf16; // f16 or bf16
  int64_t rows = 0;
  int64_t cols = 0;          // a multiple of kFp8Columns
  Fp8Scaling scaling = Fp8Scaling::row;
  uint8_t* codes = nullptr;  // [rows, cols]
  float* scales = nullptr;   // [rows], or for blocks [ceil(cols / 128)][rows]
};
void quantize_rows(const QuantizeRowsCall& call, Stream stream);

// Weight rows [first_row, first_row + rows) of an e4m3 linear in its x_dtype: code times scale, rounded.
void widen_rows(const GpuLinear& linear, int64_t first_row, int64_t rows, void* out, Stream stream);

// Few rows of f16 or bf16 by e4m3 weights, widened on their way to the tensor cores: the time is that of
// reading 8 bits a weight. rows <= kSmallGemmFp8Rows, out_features a multiple of 16. The bias is the caller's.
// Deterministic.
inline constexpr int kSmallGemmFp8Rows = 16;
bool small_gemm_fp8_takes(const GemmCall& call);
void small_gemm_fp8(const GemmCall& call, Stream stream);

}  // namespace warpweave::gpu
