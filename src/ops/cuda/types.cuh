// Element types of device code: loads and stores as f32, one or several at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "ops/cuda/gpu_ops.h"
#include "warpweave/tensor.h"

namespace warpweave::gpu {

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_f32(__half x) { return __half2float(x); }

template <typename T>
__device__ __forceinline__ T from_f32(float x);
template <>
__device__ __forceinline__ float from_f32<float>(float x) { return x; }
template <>
__device__ __forceinline__ __nv_bfloat16 from_f32<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
template <>
__device__ __forceinline__ __half from_f32<__half>(float x) { return __float2half_rn(x); }

// N neighbours that one instruction moves.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T value[N];
};

template <typename T, int N>
__device__ __forceinline__ void load_f32(const T* from, float (&to)[N]) {
  const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = to_f32(pack.value[i]);
}

template <typename T, int N>
__device__ __forceinline__ void store_f32(T* to, const float (&from)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.value[i] = from_f32<T>(from[i]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// The sum over a CTA of kThreads, in every thread; in the same order whatever the grid.
template <int kThreads>
__device__ float block_sum(float x) {
  __shared__ float of_warp[kThreads / 32];
  x = warp_sum(x);
  __syncthreads();  // the sums before have been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kThreads / 32; ++w) sum += of_warp[w];
  return sum;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// Partial sums of N elements, `stride` elements from one to the next: all loads begin at once, where the registers are.
template <int N>
struct PartialPack {
  float4 part[kMostPartials][N / 4];

  __device__ __forceinline__ void load(const float* from, int splits, int64_t stride, bool wanted = true) {
#pragma unroll
    for (int s = 0; s < kMostPartials; ++s) {
#pragma unroll
      for (int i = 0; i < N / 4; ++i) {
        part[s][i] = float4{};
        if (wanted && s < splits) part[s][i] = __ldcg(reinterpret_cast<const float4*>(from + s * stride) + i);
      }
    }
  }
  // In their order.
  __device__ __forceinline__ void add_to(float (&to)[N]) const {
#pragma unroll
    for (int s = 0; s < kMostPartials; ++s) {
#pragma unroll
      for (int i = 0; i < N / 4; ++i) {
        to[4 * i] += part[s][i].x;
        to[4 * i + 1] += part[s][i].y;
        to[4 * i + 2] += part[s][i].z;
        to[4 * i + 3] += part[s][i].w;
      }
    }
  }
};

// Calls `run` with a null pointer of the element type that stands for `dtype` (f32, f16 or bf16).
template <typename Run>
void with_type(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::f32: run(static_cast<float*>(nullptr)); break;
    case DType::f16: run(static_cast<__half*>(nullptr)); break;
    default: run(static_cast<__nv_bfloat16*>(nullptr)); break;
  }
}

}  // namespace warpweave::gpu
