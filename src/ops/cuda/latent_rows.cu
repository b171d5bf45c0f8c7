// The row-wise kernels of latent.h: a block for a row's token and one for its queries.
#include <cuda_runtime.h>

#include "base/float8.h"
#include "kv/latent_token.h"
#include "ops/cuda/latent.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kThreads = 256;

struct Turn {
  float cos, sin;
  int first, second;  // of the two elements
};
__device__ Turn turn_of(const LatentRowsCall& call, int position, int pair) {
  const int half = call.rope_dim / 2;
  const int64_t at = int64_t{position} * half + pair;
  const int first = call.interleaved ? 2 * pair : pair;
  if (call.cos == nullptr) return {1, 0, first, call.interleaved ? first + 1 : first + half};
  return {call.cos[at], call.sin[at], first, call.interleaved ? first + 1 : first + half};
}

__device__ void store_element(const KvPoolView& pool, int64_t at, float value) {
  char* const data = static_cast<char*>(const_cast<void*>(pool.data));
  const float inverse = pool.head_scales != nullptr ? 1.0f / pool.head_scales[0] : 1.0f;
  switch (pool.format) {
    case KvFormat::f32: reinterpret_cast<float*>(data)[at] = value; break;
    case KvFormat::f16: reinterpret_cast<__half*>(data)[at] = __float2half_rn(value); break;
    case KvFormat::fp8_e4m3: reinterpret_cast<uint8_t*>(data)[at] = f32_to_e4m3(value * inverse); break;
    case KvFormat::fp8_e5m2: reinterpret_cast<uint8_t*>(data)[at] = f32_to_e5m2(value * inverse); break;
    default: reinterpret_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(value); break;
  }
}

// A token of fp8_ds_mla (kv/latent_token.h) of the row in shared memory, which block_sum has made everybody's: a warp for each
// scale, and one for the rotated part.
__device__ void write_packed(const LatentRowsCall& call, const float* values, float norm, int64_t at, int position) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  auto* const token = static_cast<uint8_t*>(const_cast<void*>(call.out.data)) + at;
  constexpr int kScales = kPackedLatentDim / kDsMlaScaleDim, kValues = kDsMlaScaleDim / 32;
  if (warp < kScales) {
    const int first = warp * kDsMlaScaleDim + lane * kValues;
    float x[kValues], largest = 0;
    for (int i = 0; i < kValues; ++i) {
      x[i] = values[first + i] * norm * call.latent_norm[first + i];
      largest = fmaxf(largest, fabsf(x[i]));
    }
    const float scale = ds_mla_scale(warp_max(largest)), inverse = 1.0f / scale;
    uchar4 codes;
    codes.x = f32_to_e4m3(x[0] * inverse);
    codes.y = f32_to_e4m3(x[1] * inverse);
    codes.z = f32_to_e4m3(x[2] * inverse);
    codes.w = f32_to_e4m3(x[3] * inverse);
    static_assert(kValues == 4);
    *reinterpret_cast<uchar4*>(token + first) = codes;
    if (lane == 0) *reinterpret_cast<float*>(token + kDsMlaScaleAt + warp * sizeof scale) = scale;
  } else if (warp == kScales) {
    auto* const rope = reinterpret_cast<__nv_bfloat16*>(token + kDsMlaRopeAt);
    const Turn turn = turn_of(call, position, lane);
    const float a = values[kPackedLatentDim + turn.first], b = values[kPackedLatentDim + turn.second];
    rope[turn.first] = __float2bfloat16_rn(a * turn.cos - b * turn.sin);
    rope[turn.second] = __float2bfloat16_rn(b * turn.cos + a * turn.sin);
  }
}

template <typename T>
__device__ void write_token(const LatentRowsCall& call, int64_t row, int32_t slot, int position) {
  extern __shared__ float values[];  // [kv_rank + rope_dim]
  const T* const token = static_cast<const T*>(call.token) + row * call.token_stride;
  float squares = 0;
  for (int i = threadIdx.x; i < call.kv_rank + call.rope_dim; i += kThreads) {
    const float x = to_f32(token[i]);
    values[i] = x;
    if (i < call.kv_rank) squares += x * x;
  }
  const float scale = 1.0f / sqrtf(block_sum<kThreads>(squares) / static_cast<float>(call.kv_rank) + call.norm_eps);
  const int64_t at = slot / call.page_size * call.out.page_stride + slot % call.page_size * call.out.token_stride;
  if (call.out.format == KvFormat::fp8_ds_mla) return write_packed(call, values, scale, at, position);
  for (int i = threadIdx.x; i < call.kv_rank; i += kThreads) {
    store_element(call.out, at + i, values[i] * scale * call.latent_norm[i]);
  }
  for (int pair = threadIdx.x; pair < call.rope_dim / 2; pair += kThreads) {
    const Turn turn = turn_of(call, position, pair);
    const float a = values[call.kv_rank + turn.first], b = values[call.kv_rank + turn.second];
    store_element(call.out, at + call.kv_rank + turn.first, a * turn.cos - b * turn.sin);
    store_element(call.out, at + call.kv_rank + turn.second, b * turn.cos + a * turn.sin);
  }
}

template <typename T>
__device__ void rotate_queries(const LatentRowsCall& call, int64_t row, int position) {
  const int half = call.rope_dim / 2;
  T* const from = static_cast<T*>(call.q_rope) + row * call.q_stride;
  T* const to = static_cast<T*>(call.q_out) + row * call.q_out_stride;
  for (int i = threadIdx.x; i < call.num_heads * half; i += kThreads) {
    const int head = i / half;
    const Turn turn = turn_of(call, position, i % half);
    T* const in = from + head * call.q_head_stride;
    T* const out = to + head * call.q_out_head_stride;
    const float a = to_f32(in[turn.first]), b = to_f32(in[turn.second]);
    const T first = from_f32<T>(a * turn.cos - b * turn.sin), second = from_f32<T>(b * turn.cos + a * turn.sin);
    out[turn.first] = first;
    out[turn.second] = second;
    if (!call.in_place) continue;
    in[turn.first] = first;
    in[turn.second] = second;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) latent_rows_kernel(LatentRowsCall call) {
  start_successor();
  const int64_t row = blockIdx.x;
  const int32_t slot = call.kv_slots[row];
  const int position = call.positions[row];
  wait_for_predecessor();
  if (blockIdx.y == 1) return rotate_queries<T>(call, row, position);
  if (slot >= 0) write_token<T>(call, row, slot, position);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) norm_rows_kernel(NormRowsCall call) {
  start_successor();
  wait_for_predecessor();
  const T* const x = static_cast<const T*>(call.x) + blockIdx.x * call.x_stride;
  T* const out = static_cast<T*>(call.out) + blockIdx.x * call.cols;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < call.cols; i += kThreads) {
    const float value = to_f32(x[i]);
    squares += value * value;
  }
  const float scale = 1.0f / sqrtf(block_sum<kThreads>(squares) / static_cast<float>(call.cols) + call.eps);
  for (int64_t i = threadIdx.x; i < call.cols; i += kThreads) out[i] = from_f32<T>(to_f32(x[i]) * scale * call.weight[i]);
}

}  // namespace

void norm_rope_write_latent(const LatentRowsCall& call, Stream stream) {
  if (call.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(call.rows), 2);
  const size_t shared_bytes = sizeof(float) * (call.kv_rank + call.rope_dim);
  with_type(call.dtype, [&]<typename T>(T*) {
    launch_dependent({grid, kThreads, shared_bytes, static_cast<cudaStream_t>(stream)}, latent_rows_kernel<T>, call);
  });
}

void norm_rows(const NormRowsCall& call, Stream stream) {
  if (call.rows == 0) return;
  with_type(call.dtype, [&]<typename T>(T*) {
    launch_dependent({dim3(static_cast<unsigned>(call.rows)), kThreads, 0, static_cast<cudaStream_t>(stream)},
                     norm_rows_kernel<T>, call);
  });
}

}  // namespace warpweave::gpu
