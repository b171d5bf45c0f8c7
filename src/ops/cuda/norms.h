// Kernels that few families need: layer norms with a bias (Phi-3.5-MoE), RMS norms over all heads of q or of k (OLMoE,
// OLMo 2 and 3), rows without a norm (OLMo 2), activations without a gate (StarCoder2), scaled logits (Granite). A row's
// bits do not depend on the other rows. Enqueued on `stream`, no errors.
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

// out = x, in another type.
struct CopyRowsCall {
  float* x = nullptr;                     // written only with partial sums
  PartialSums partials = {};              // of rows that follow each other as x's do: x += their sum first
  int64_t count = 0;                      // elements
  void* out = nullptr;                    // of out_dtype
  DType out_dtype = DType::bf16;
  float* out_f32 = nullptr;               // a second, exact copy for routers, or null
};
void copy_rows(const CopyRowsCall& call, Stream stream);

// out = scale * (x + the partial sums), which stay as they are: rows of a layer for a draft model.
struct KeepLayerCall {
  const float* x = nullptr;               // [rows, cols] dense
  PartialSums partials = {};
  int64_t rows = 0;
  int64_t cols = 0;
  float scale = 1;
  void* out = nullptr;                    // [rows, cols] of out_dtype
  DType out_dtype = DType::bf16;
  int64_t out_stride = 0;                 // of a row, in elements
};
void keep_layer(const KeepLayerCall& call, Stream stream);

// x = act(x) in place, of `dtype`.
struct ActivateCall {
  GluActivation activation = GluActivation::gelu_tanh;
  void* x = nullptr;
  DType dtype = DType::bf16;
  int64_t count = 0;                      // elements
};
void activate(const ActivateCall& call, Stream stream);

// x *= scale.
void scale(float* x, float scale, int64_t count, Stream stream);

}  // namespace warpweave::gpu
