// The norm behind a layer's experts (experts.h) whose rows leave in e4m3 for the GEMM behind, with a scale for each block of
// kFp8Block columns: what quantize_rows() would make of norm_experts()' rows, bit for bit, in one kernel. Enqueued on `stream`,
// no errors.
#pragma once

#include "ops/cuda/experts.h"
#include "ops/cuda/fp8.h"
#include "ops/cuda/row_codes.h"

namespace warpweave::gpu {

struct NormExpertsCodesCall : NormExpertsCall {
  RowCodes to = {};          // in place of norm.out; null: there
  int64_t scale_stride = 0;  // rows from a block's scales to the next block's: to.scales [cols / kFp8Block][scale_stride]
};
constexpr bool norm_experts_codes_takes(int64_t cols, DType dtype) { return cols % kFp8Block == 0 && dtype != DType::f32; }
void norm_experts_codes(const NormExpertsCodesCall& call, Stream stream);

}  // namespace warpweave::gpu
