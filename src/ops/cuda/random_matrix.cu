#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/gpu_ops.h"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kThreads = 256, kEach = 8;

template <typename T>
__global__ void fill_random_kernel(RandomMatrix rule, int64_t count, T* out) {
  const int64_t step = int64_t{gridDim.x} * kThreads * kEach;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach; i < count; i += step) {
    float value[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) value[j] = rule.scale * random_unit(rule.base, i + j);
    if (i + kEach <= count) {
      store_f32(out + i, value);
    } else {
      for (int j = 0; j < count - i; ++j) out[i + j] = from_f32<T>(value[j]);
    }
  }
}

}  // namespace

void fill_random(const RandomMatrix& rule, int64_t count, DType dtype, void* out, Stream stream) {
  constexpr int64_t kMostBlocks = 1 << 16;
  const int64_t blocks = std::min(kMostBlocks, (count + kThreads * kEach - 1) / (kThreads * kEach));
  if (blocks == 0) return;
  with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    fill_random_kernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        rule, count, static_cast<T*>(out));
  });
}

}  // namespace warpweave::gpu
