// What experts do row by row: spreading rows to their places, summing results by row, and the gate of shared experts.
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "ops/cuda/experts.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

// A warp reads a row, or a piece of it, once and writes it to its places; kTogether loads of a lane are under way.
template <int kTogether>
__global__ void __launch_bounds__(256) spread_kernel(const __grid_constant__ SpreadRowsCall call, int pieces) {
  if (call.early_successor) start_successor();
  wait_for_predecessor();
  start_successor();  // not before: the successor may take the plan as settled
  const int64_t index = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32, row = index / pieces;
  if (row >= call.rows) return;
  const char* const from = static_cast<const char*>(call.x) + row * call.row_bytes;
  const int lane = threadIdx.x % 32;
  const int64_t place = lane < call.k ? __ldcg(call.place_of + row * call.stride + lane) : 0;  // on its way beside the row
  const int64_t step = int64_t{pieces} * kTogether * 512;
  for (int64_t base = index % pieces * (kTogether * 512) + lane * 16; base - lane * 16 < call.row_bytes; base += step) {
    uint4 v[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (base + i * 512 < call.row_bytes) v[i] = __ldcg(reinterpret_cast<const uint4*>(from + base + i * 512));
    }
    for (int j = 0; j < call.k; ++j) {
      char* const to = static_cast<char*>(call.out) + __shfl_sync(~0u, place, j) * call.row_bytes + base;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (base + i * 512 < call.row_bytes) *reinterpret_cast<uint4*>(to + i * 512) = v[i];
      }
    }
  }
}

constexpr int kCombineThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const __grid_constant__ CombineExpertsCall call) {
  start_successor();
  wait_for_predecessor();
  const int64_t row = blockIdx.x;
  const T* const results = static_cast<const T*>(call.sums.results);
  for (int64_t i = threadIdx.x * 8; i < call.hidden; i += kCombineThreads * 8) {
    float sum[8];
    load_f32(call.y + row * call.hidden + i, sum);
#pragma unroll 4
    for (int j = 0; j < call.sums.k; ++j) {
      float of_expert[8];
      load_f32(results + call.sums.place_of[row * call.sums.k + j] * call.hidden + i, of_expert);
      const float weight = call.sums.weights[row * call.sums.k + j];
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

void spread_rows(const SpreadRowsCall& call, Stream stream) {
  if (call.rows == 0) return;
  constexpr int64_t kFewRows = 256;  // which small pieces and CTAs spread over all SMs
  const auto launch = [&]<int kTogether>(std::integral_constant<int, kTogether>, unsigned threads) {
    constexpr int64_t kPieceBytes = kTogether * 512;
    const int64_t pieces = std::max<int64_t>(1, (call.row_bytes + kPieceBytes - 1) / kPieceBytes), warps = threads / 32;
    const auto blocks = static_cast<unsigned>((call.rows * pieces + warps - 1) / warps);
    SpreadRowsCall strided = call;
    if (strided.stride == 0) strided.stride = call.k;
    launch_dependent({blocks, threads, 0, static_cast<cudaStream_t>(stream)}, spread_kernel<kTogether>, strided,
                     static_cast<int>(pieces));
  };
  call.rows <= kFewRows ? launch(std::integral_constant<int, 2>(), 64) : launch(std::integral_constant<int, 4>(), 256);
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
