// What experts do row by row: gathering rows by place, summing results by row, and the gate of shared experts.
#include <cuda_runtime.h>

#include "ops/cuda/experts.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

__global__ void __launch_bounds__(256) gather_kernel(const char* x, const int32_t* pair_of, int k, int64_t pairs, int64_t row_bytes,
                                                     char* out) {
  start_successor();
  wait_for_predecessor();
  const int64_t place = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  if (place >= pairs) return;
  const char* const from = x + pair_of[place] / k * row_bytes;
  char* const to = out + place * row_bytes;
  constexpr int kTogether = 8;  // loads under way
  for (int64_t base = threadIdx.x % 32 * 16; base < row_bytes; base += kTogether * 512) {
    uint4 v[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (base + j * 512 < row_bytes) v[j] = __ldcg(reinterpret_cast<const uint4*>(from + base + j * 512));
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (base + j * 512 < row_bytes) *reinterpret_cast<uint4*>(to + base + j * 512) = v[j];
    }
  }
}

constexpr int kCombineThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const __grid_constant__ CombineExpertsCall call) {
  start_successor();
  wait_for_predecessor();
  const int64_t row = blockIdx.x;
  const T* const results = static_cast<const T*>(call.results);
  for (int64_t i = threadIdx.x * 8; i < call.hidden; i += kCombineThreads * 8) {
    float sum[8];
    load_f32(call.y + row * call.hidden + i, sum);
#pragma unroll 4
    for (int j = 0; j < call.k; ++j) {
      float of_expert[8];
      load_f32(results + call.plan.place_of[row * call.k + j] * call.hidden + i, of_expert);
      const float weight = call.plan.weights[row * call.k + j];
#pragma unroll
      for (int c = 0; c < 8; ++c) sum[c] += weight * of_expert[c];
    }
    store_f32(call.y + row * call.hidden + i, sum);
  }
}

template <typename T>
__global__ void __launch_bounds__(256) scale_by_gate_kernel(const __grid_constant__ ScaleByGateCall call) {
  __shared__ float of_warp[8];
  start_successor();
  wait_for_predecessor();
  const T* const x = static_cast<const T*>(call.x) + blockIdx.x * call.hidden;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < call.hidden; i += 256) sum += to_f32(x[i]) * call.gate[i];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (float part : of_warp) sum += part;
  const float scale = 1 / (1 + expf(-sum));
  T* const y = static_cast<T*>(call.y) + blockIdx.x * call.cols;
  for (int64_t i = threadIdx.x; i < call.cols; i += 256) y[i] = from_f32<T>(to_f32(y[i]) * scale);
}

}  // namespace

void gather_places(const void* x, const ExpertPlan& plan, int k, int64_t pairs, int64_t row_bytes, void* out, Stream stream) {
  if (pairs == 0) return;
  launch_dependent({static_cast<unsigned>((pairs + 7) / 8), 256, 0, static_cast<cudaStream_t>(stream)}, gather_kernel,
                   static_cast<const char*>(x), static_cast<const int32_t*>(plan.pair_of), k, pairs, row_bytes,
                   static_cast<char*>(out));
}

void scale_by_gate(const ScaleByGateCall& call, Stream stream) {
  if (call.rows == 0) return;
  with_type(call.dtype, [&]<typename T>(T*) {
    launch_dependent({static_cast<unsigned>(call.rows), 256, 0, static_cast<cudaStream_t>(stream)}, scale_by_gate_kernel<T>, call);
  });
}

void combine_experts(const CombineExpertsCall& call, Stream stream) {
  if (call.rows == 0) return;
  with_type(call.dtype, [&]<typename T>(T*) {
    launch_dependent({static_cast<unsigned>(call.rows), kCombineThreads, 0, static_cast<cudaStream_t>(stream)},
                     combine_kernel<T>, call);
  });
}

}  // namespace warpweave::gpu
