// The rows that a draft head begins with, by one block a half of a row. For draft_kernels.cu.
#pragma once

#include "device/cuda/ptx.h"
#include "ops/cuda/types.cuh"
#include "spec/cuda/draft_kernels.h"

namespace warpweave::gpu {
namespace {

constexpr int kDraftRowThreads = 256;

// Grid: x = row, y = half.
template <typename T>
__global__ void draft_inputs_kernel(DraftInputsCall call) {
  ptx::launch_dependents();  // of a plain launch: all before it has ended (launch.cuh)
  constexpr int kPack = 16 / sizeof(T);
  const int64_t row = blockIdx.x, cols = call.cols;
  const bool embeds = blockIdx.y == 0;
  const int32_t id = call.ids[row];
  const int64_t token = id >= 0 ? id : max(call.choices[-1 - id].token, 0);
  const T* const from = embeds ? static_cast<const T*>(call.table) + token * cols
                               : static_cast<const T*>(call.features) + call.feature_rows[row] * cols;
  const float* const norm = embeds ? call.embedding_norm : call.feature_norm;
  T* const out = static_cast<T*>(call.out) + row * 2 * cols + (embeds ? 0 : cols);
  float scale = embeds ? call.scale : 1.0f;
  if (norm != nullptr) {
    float squares = 0;
    for (int64_t i = threadIdx.x * kPack; i < cols; i += kDraftRowThreads * kPack) {
      float values[kPack];
      load_f32(from + i, values);
#pragma unroll
      for (int j = 0; j < kPack; ++j) squares += scale * values[j] * (scale * values[j]);
    }
    scale *= 1.0f / sqrtf(block_sum<kDraftRowThreads>(squares) / static_cast<float>(cols) + call.norm_eps);
  }
  for (int64_t i = threadIdx.x * kPack; i < cols; i += kDraftRowThreads * kPack) {
    float values[kPack];
    load_f32(from + i, values);
#pragma unroll
    for (int j = 0; j < kPack; ++j)
      values[j] *= norm != nullptr ? scale * (norm[i + j] + call.norm_weight_offset) : scale;
    store_f32(out + i, values);
  }
}

}  // namespace
}  // namespace warpweave::gpu
