// What the row-wise kernels around the recurrence read (rows.cuh).
#pragma once

#include "linear/cuda/linear_params.h"

namespace warpweave::linear {

inline constexpr int kRowsThreads = 256;
inline constexpr int kConvStepWidth = 4;  // of the convolution, that conv_step.cuh has

struct RowsParams {
  LinearParams linear;                // q, k, v: where they come from, without a convolution
  bool has_conv = false;
  LinearAttnConv conv;
  bool writes_conv_state = false;     // after the call's tokens, or, with batch.accepted, after the accepted path
  int channels = 0;                   // of q, k and v together
  void* packed = nullptr;             // [tokens, channels]
  DType packed_dtype = DType::bf16;
  LinearAttnNorm norm;
  const void* norm_from = nullptr;    // what is normed, [tokens, v_heads, v_dim]
  DType norm_from_dtype = DType::f32;
  int64_t norm_from_stride = 0;
  int blocks = 0;                     // of up to 64 tokens of one request
  bool conv_step = false;             // one token a request, and all of conv_step.cuh's loads are aligned
};

}  // namespace warpweave::linear
