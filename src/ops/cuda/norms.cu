#include "ops/cuda/norms.h"

#include <cuda_runtime.h>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) layer_norm_kernel(LayerNormCall call) {
  const int64_t first = blockIdx.x * call.cols;
  const float* const x = call.x + first;
  const float count = static_cast<float>(call.cols);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < call.cols; i += kThreads) sum += x[i];
  const float mean = block_sum<kThreads>(sum) / count;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < call.cols; i += kThreads) squares += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.0f / sqrtf(block_sum<kThreads>(squares) / count + call.eps);
  for (int64_t i = threadIdx.x; i < call.cols; i += kThreads) {
    const float y = (x[i] - mean) * scale * call.weight[i] + (call.bias != nullptr ? call.bias[i] : 0.0f);
    static_cast<T*>(call.out)[first + i] = from_f32<T>(y);
    if (call.out_f32 != nullptr) call.out_f32[first + i] = y;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) wide_norm_kernel(WideNormCall call) {
  T* const x = static_cast<T*>(call.x) + blockIdx.x * call.row_stride;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < call.cols; i += kThreads) {
    const float value = to_f32(x[i]);
    squares += value * value;
  }
  const float scale = 1.0f / sqrtf(block_sum<kThreads>(squares) / static_cast<float>(call.cols) + call.eps);
  for (int64_t i = threadIdx.x; i < call.cols; i += kThreads) x[i] = from_f32<T>(to_f32(x[i]) * scale * call.weight[i]);
}

// One element a thread.
__device__ int64_t element() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }
unsigned blocks_for(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

template <typename T>
__global__ void __launch_bounds__(kThreads) copy_rows_kernel(CopyRowsCall call) {
  const int64_t i = element();
  if (i >= call.count) return;
  float value = call.x[i];
  if (call.partials.data != nullptr) {
    for (int split = 0; split < call.partials.splits; ++split) value += call.partials.data[split * call.partials.stride + i];
    call.x[i] = value;
  }
  static_cast<T*>(call.out)[i] = from_f32<T>(value);
  if (call.out_f32 != nullptr) call.out_f32[i] = value;
}

// The next norm adds the same partial sums in the same order.
template <typename T>
__global__ void __launch_bounds__(kThreads) keep_layer_kernel(KeepLayerCall call) {
  const int64_t first = blockIdx.x * call.cols;
  T* const out = static_cast<T*>(call.out) + blockIdx.x * call.out_stride;
  for (int64_t i = threadIdx.x; i < call.cols; i += kThreads) {
    float value = call.x[first + i];
    for (int split = 0; split < call.partials.splits; ++split) value += call.partials.data[split * call.partials.stride + first + i];
    out[i] = from_f32<T>(call.scale * value);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) activate_kernel(ActivateCall call) {
  const int64_t i = element();
  T* const x = static_cast<T*>(call.x);
  if (i < call.count) x[i] = from_f32<T>(activate(call.activation, to_f32(x[i]), 1.0f));
}

__global__ void __launch_bounds__(kThreads) scale_kernel(float* x, float scale, int64_t count) {
  const int64_t i = element();
  if (i < count) x[i] *= scale;
}

}  // namespace

void copy_rows(const CopyRowsCall& call, Stream stream) {
  if (call.count == 0) return;
  with_type(call.out_dtype, [&]<typename T>(T*) {
    copy_rows_kernel<T><<<blocks_for(call.count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(call);
  });
}

void keep_layer(const KeepLayerCall& call, Stream stream) {
  if (call.rows == 0) return;
  with_type(call.out_dtype, [&]<typename T>(T*) {
    keep_layer_kernel<T><<<static_cast<unsigned>(call.rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(call);
  });
}

void activate(const ActivateCall& call, Stream stream) {
  if (call.count == 0) return;
  with_type(call.dtype, [&]<typename T>(T*) {
    activate_kernel<T><<<blocks_for(call.count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(call);
  });
}

void scale(float* x, float scale, int64_t count, Stream stream) {
  if (count == 0) return;
  scale_kernel<<<blocks_for(count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(x, scale, count);
}

void layer_norm(const LayerNormCall& call, Stream stream) {
  if (call.rows == 0) return;
  with_type(call.out_dtype, [&]<typename T>(T*) {
    layer_norm_kernel<T><<<static_cast<unsigned>(call.rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(call);
  });
}

void wide_norm(const WideNormCall& call, Stream stream) {
  if (call.rows == 0) return;
  with_type(call.dtype, [&]<typename T>(T*) {
    wide_norm_kernel<T><<<static_cast<unsigned>(call.rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(call);
  });
}

}  // namespace warpweave::gpu
