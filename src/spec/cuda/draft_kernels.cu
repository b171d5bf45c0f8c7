#include "spec/cuda/draft_kernels.h"

#include <cuda_runtime.h>

#include "ops/cuda/types.cuh"
#include "spec/cuda/top_choices.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kRowThreads = 256;

template <typename T>
constexpr int kPackOf = 16 / sizeof(T);

template <typename T>
__global__ void draft_inputs_kernel(DraftInputsCall call) {
  constexpr int kPack = kPackOf<T>;
  const int64_t row = blockIdx.x, cols = call.cols;
  const int32_t id = call.ids[row];
  const int32_t token = id >= 0 ? id : max(call.choices[-1 - id].token, 0);
  const T* const embedding = static_cast<const T*>(call.table) + token * cols;
  const T* const feature = static_cast<const T*>(call.features) + call.feature_rows[row] * cols;
  T* const out = static_cast<T*>(call.out) + row * 2 * cols;
  for (int64_t i = threadIdx.x * kPack; i < cols; i += kRowThreads * kPack) {
    float values[kPack];
    load_f32(embedding + i, values);
#pragma unroll
    for (int j = 0; j < kPack; ++j) values[j] *= call.scale;
    store_f32(out + i, values);
    load_f32(feature + i, values);
    store_f32(out + cols + i, values);
  }
}

template <typename T>
__global__ void keep_rows_kernel(KeepRowsCall call) {
  constexpr int kPack = 4;
  const int64_t row = blockIdx.x, cols = call.cols;
  T* const out = static_cast<T*>(call.out) + row * cols;
  T* const kept = static_cast<T*>(call.kept) + call.keep[row] * cols;
  for (int64_t i = threadIdx.x * kPack; i < cols; i += kRowThreads * kPack) {
    float values[kPack];
    load_f32(call.x + row * cols + i, values);
    store_f32(out + i, values);
    store_f32(kept + i, values);
  }
}

template <typename Launch>
void with_dtype(DType dtype, Launch&& launch) {
  switch (dtype) {
    case DType::f32: return launch(static_cast<float*>(nullptr));
    case DType::f16: return launch(static_cast<__half*>(nullptr));
    default: return launch(static_cast<__nv_bfloat16*>(nullptr));
  }
}

}  // namespace

void top_choices(const TopChoicesCall& call, void* stream) {
  if (call.rows == 0) return;
  top_choices_kernel<<<call.rows, kTopThreads, 0, static_cast<cudaStream_t>(stream)>>>(call.logits, call.vocab_size,
                                                                                        call.tokens, call.topk, call.out);
}

void draft_inputs(const DraftInputsCall& call, void* stream) {
  if (call.rows == 0) return;
  with_dtype(call.dtype, [&]<typename T>(T*) {
    draft_inputs_kernel<T><<<call.rows, kRowThreads, 0, static_cast<cudaStream_t>(stream)>>>(call);
  });
}

void keep_rows(const KeepRowsCall& call, void* stream) {
  if (call.rows == 0) return;
  with_dtype(call.dtype, [&]<typename T>(T*) {
    keep_rows_kernel<T><<<call.rows, kRowThreads, 0, static_cast<cudaStream_t>(stream)>>>(call);
  });
}

}  // namespace warpweave::gpu
