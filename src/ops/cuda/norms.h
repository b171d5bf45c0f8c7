// Norms that few families need, in kernels of their own: layer norms with a bias (Phi-3.5-MoE), and RMS norms over
// all heads of q or of k (OLMoE). A row's bits do not depend on the other rows. Enqueued on `stream`, no errors.
#pragma once

#include <cstdint>

#include "ops/cuda/gpu_ops.h"

namespace warpweave::gpu {

// out = (x - mean) / sqrt(variance + eps) * weight + bias, per row.
struct LayerNormCall {
  const float* x = nullptr;               // [rows, cols] dense
  int64_t rows = 0;
  int64_t cols = 0;
  const float* weight = nullptr;
  const float* bias = nullptr;            // [cols], or null
  float eps = 1e-5f;
  void* out = nullptr;                    // [rows, cols] of out_dtype
  DType out_dtype = DType::bf16;
  float* out_f32 = nullptr;               // a second, exact copy for routers, or null
};
void layer_norm(const LayerNormCall& call, Stream stream);

// x = x / sqrt(mean(x^2) + eps) * weight, in place, per row.
struct WideNormCall {
  void* x = nullptr;                      // [rows, cols] of `dtype`
  DType dtype = DType::bf16;
  int64_t row_stride = 0;                 // in elements
  int64_t rows = 0;
  int64_t cols = 0;
  const float* weight = nullptr;
  float eps = 1e-6f;
};
void wide_norm(const WideNormCall& call, Stream stream);

}  // namespace warpweave::gpu
