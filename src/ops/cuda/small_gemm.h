// GEMMs with few rows (decode), whose time is that of reading the weights once from memory.
#pragma once

#include "ops/cuda/gpu_ops.h"

namespace warpweave::gpu {

struct GemmCall;

inline constexpr int kSmallGemmRows = 16;
inline constexpr int kSmallGemmNormRows = 2;
// sm_90 or newer, rows <= kSmallGemmRows, 16-bit dtypes, in_features a multiple of 64, out_features of 16
// (of 32, and without a bias, with fused_glu). With a norm: bf16, up to kSmallGemmNormRows rows of 32 KB together,
// in_features a multiple of 128, no accumulation.
bool small_gemm_takes(const GemmCall& call);
// The bias is the caller's to add. Deterministic.
void small_gemm(const GemmCall& call, Stream stream);

}  // namespace warpweave::gpu
