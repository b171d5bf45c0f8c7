// Products with few rows (decode), whose time is that of reading the weights once from memory.
#pragma once

#include "ops/cuda/gpu_ops.h"

namespace warpweave::gpu {

struct GemmCall;

inline constexpr int kSmallGemmRows = 16;
// sm_90 or newer, rows <= kSmallGemmRows, 16-bit dtypes, in_features a multiple of 64, out_features of 16.
bool small_gemm_takes(const GemmCall& call);
// The bias is the caller's to add. Deterministic.
void small_gemm(const GemmCall& call, Stream stream);

}  // namespace warpweave::gpu
