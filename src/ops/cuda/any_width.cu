#include "ops/cuda/any_width.h"

#include <cuda_runtime.h>

#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kThreads = 256;

cudaStream_t cuda_stream(Stream stream) { return static_cast<cudaStream_t>(stream); }

template <typename T>
__global__ void __launch_bounds__(kThreads) embedding_kernel(EmbeddingCall call) {
  const int64_t row = blockIdx.x;
  int32_t id = call.ids[row];
  if (call.future_slots != nullptr && call.future_slots[row] >= 0) id = max(call.sampled[call.future_slots[row]], 0);
  const T* const from = static_cast<const T*>(call.table) + id * call.cols;
  float* const to = call.out + row * call.cols;
  for (int64_t i = threadIdx.x; i < call.cols; i += kThreads) to[i] = call.scale * to_f32(from[i]);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(RmsNormCall call) {
  const int64_t first = blockIdx.x * call.cols;
  const float* const x = call.x + first;
  T* const out = static_cast<T*>(call.out) + first;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < call.cols; i += kThreads) squares += x[i] * x[i];
  const float inverse = rsqrtf(block_sum<kThreads>(squares) / static_cast<float>(call.cols) + call.eps);
  for (int64_t i = threadIdx.x; i < call.cols; i += kThreads) {
    float value = x[i] * (inverse * (call.weight[i] + call.weight_offset));
    if (call.accumulate) value += to_f32(out[i]);
    out[i] = from_f32<T>(value);
    if (call.out_f32 != nullptr) call.out_f32[first + i] = value;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) fill_up_kernel(FillUpRowsCall call, int64_t width) {
  const T* const in = static_cast<const T*>(call.in) + blockIdx.x * call.cols;
  T* const out = static_cast<T*>(call.out) + blockIdx.x * width;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) out[i] = i < call.cols ? in[i] : from_f32<T>(0.0f);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) combine_kernel(CombineExpertsCall call, int64_t width) {
  const int64_t row = blockIdx.x, first = row * call.sums.k;
  const T* const results = static_cast<const T*>(call.sums.results);
  for (int64_t i = threadIdx.x; i < call.hidden; i += kThreads) {
    float sum = call.y[row * call.hidden + i];
    for (int64_t j = first; j < first + call.sums.k; ++j) {
      sum += call.sums.weights[j] * to_f32(results[call.sums.place_of[j] * width + i]);
    }
    call.y[row * call.hidden + i] = sum;
  }
}

}  // namespace

void embedding_any_width(const EmbeddingCall& call, Stream stream) {
  if (call.rows == 0) return;
  with_type(call.dtype, [&]<typename T>(T*) {
    embedding_kernel<T><<<static_cast<unsigned>(call.rows), kThreads, 0, cuda_stream(stream)>>>(call);
  });
}

void rms_norm_any_width(const RmsNormCall& call, Stream stream) {
  if (call.rows == 0) return;
  with_type(call.out_dtype, [&]<typename T>(T*) {
    rms_norm_kernel<T><<<static_cast<unsigned>(call.rows), kThreads, 0, cuda_stream(stream)>>>(call);
  });
}

void fill_up_rows(const FillUpRowsCall& call, Stream stream) {
  if (call.rows == 0) return;
  with_type(call.dtype, [&]<typename T>(T*) {
    fill_up_kernel<T><<<static_cast<unsigned>(call.rows), kThreads, 0, cuda_stream(stream)>>>(call,
                                                                                             whole_width(call.cols));
  });
}

void combine_experts_any_width(const CombineExpertsCall& call, Stream stream) {
  if (call.rows == 0) return;
  with_type(call.dtype, [&]<typename T>(T*) {
    combine_kernel<T><<<static_cast<unsigned>(call.rows), kThreads, 0, cuda_stream(stream)>>>(call,
                                                                                             whole_width(call.hidden));
  });
}

}  // namespace warpweave::gpu
