#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/experts.h"
#include "ops/cuda/gpu_ops.h"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kThreads = 256, kEach = 8;

// Rows of turn_cols elements that alternate with another matrix's, kGluTurn at a time; turn_cols 0: the rows are dense.
struct Turns {
  int64_t cols = 0;
  int second = 0;  // whether the other matrix begins

  __device__ int64_t operator()(int64_t i) const {
    if (cols == 0) return i;
    const int64_t row = i / cols;
    return ((row / kGluTurn * 2 + second) * kGluTurn + row % kGluTurn) * cols + i % cols;
  }
};

template <typename T>
__global__ void fill_random_kernel(RandomMatrix rule, int64_t count, Turns turns, T* out) {
  const int64_t step = int64_t{gridDim.x} * kThreads * kEach;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach; i < count; i += step) {
    float value[kEach];
    const int64_t first = rule.index(i);  // the others follow in its row
#pragma unroll
    for (int j = 0; j < kEach; ++j) value[j] = rule.scale * random_unit(rule.base, first + j);
    if (i + kEach <= count) {
      store_f32(out + turns(i), value);
    } else {
      for (int j = 0; j < count - i; ++j) out[turns(i) + j] = from_f32<T>(value[j]);
    }
  }
}

void fill(const RandomMatrix& rule, int64_t count, const Turns& turns, DType dtype, void* out, Stream stream) {
  constexpr int64_t kMostBlocks = 1 << 16;
  const int64_t blocks = std::min(kMostBlocks, (count + kThreads * kEach - 1) / (kThreads * kEach));
  if (blocks == 0) return;
  with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    fill_random_kernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        rule, count, turns, static_cast<T*>(out));
  });
}

}  // namespace

void fill_random(const RandomMatrix& rule, int64_t count, DType dtype, void* out, Stream stream) {
  fill(rule, count, {}, dtype, out, stream);
}

void fill_random_turns(const RandomTurns& call, DType dtype, void* out, Stream stream) {
  fill(call.rule, call.rows * call.cols, {call.cols, call.second}, dtype, out, stream);
}

}  // namespace warpweave::gpu
