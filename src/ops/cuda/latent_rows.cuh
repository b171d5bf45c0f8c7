// What a token of latent attention goes through on its way to the pool, by a block of kThreads: its norm, its rotation, its
// formats (latent_rows.cu, latent_inputs.cu).
#pragma once

#include <cuda_runtime.h>

#include "base/float8.h"
#include "kv/latent_token.h"
#include "ops/cuda/latent.h"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {

struct Turn {
  float cos, sin;
  int first, second;  // of the two elements
};
__device__ __forceinline__ Turn turn_of(const LatentRowsCall& call, int position, int pair) {
  const int half = call.rope_dim / 2;
  const int64_t at = int64_t{position} * half + pair;
  const int first = call.interleaved ? 2 * pair : pair;
  if (call.cos == nullptr) return {1, 0, first, call.interleaved ? first + 1 : first + half};
  return {call.cos[at], call.sin[at], first, call.interleaved ? first + 1 : first + half};
}

__device__ __forceinline__ void store_element(const KvPoolView& pool, int64_t at, float value) {
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

// Neighbouring values of a packed token (kv/latent_token.h) that a lane has; a warp has a scale of fp8_ds_mla, four lanes have
// one of fp4_mla. `first`: in the token.
constexpr int kPackedValues = 4;

__device__ __forceinline__ void store_ds_mla(uint8_t* token, int first, const float (&x)[kPackedValues]) {
  float largest = 0;
  for (const float value : x) largest = fmaxf(largest, fabsf(value));
  const float scale = ds_mla_scale(warp_max(largest)), inverse = 1.0f / scale;
  uchar4 codes;
  codes.x = f32_to_e4m3(x[0] * inverse);
  codes.y = f32_to_e4m3(x[1] * inverse);
  codes.z = f32_to_e4m3(x[2] * inverse);
  codes.w = f32_to_e4m3(x[3] * inverse);
  *reinterpret_cast<uchar4*>(token + first) = codes;
  if (first % kDsMlaScaleDim == 0) {
    *reinterpret_cast<float*>(token + kDsMlaScaleAt + first / kDsMlaScaleDim * sizeof scale) = scale;
  }
}

// The arithmetic of kv/kv_codec.h.
__device__ __forceinline__ void store_fp4_mla(uint8_t* token, int first, const float (&x)[kPackedValues]) {
  uint32_t top = 0;  // as integers, magnitudes compare like floats, and NaN is above all
  for (const float value : x) top = max(top, __float_as_uint(value) & 0x7fffffffu);
  for (int lanes = 1; lanes < kFp4BlockElements / kPackedValues; lanes *= 2) top = max(top, __shfl_xor_sync(~0u, top, lanes));
  const uint8_t scale = max(f32_to_e4m3(__uint_as_float(top) * (1.0f / kE2m1Max)), uint8_t{1});
  const float inverse = 1.0f / e4m3_to_f32(scale);
  uint32_t codes = 0;
  for (int i = 0; i < kPackedValues; ++i) codes |= uint32_t{f32_to_e2m1(x[i] * inverse)} << 4 * i;
  *reinterpret_cast<uint16_t*>(token + first / 2) = static_cast<uint16_t>(codes);
  if (first % kFp4BlockElements == 0) token[kFp4MlaScaleAt + first / kFp4BlockElements] = scale;
}

// A packed token of the row in shared memory, which block_sum has made everybody's: a warp for 128 values at a time, and one
// for the rotated part.
template <int kThreads>
__device__ __forceinline__ void write_packed(const LatentRowsCall& call, const float* values, float norm, int64_t at, int position) {
  const int lane = threadIdx.x % 32;
  auto* const token = static_cast<uint8_t*>(const_cast<void*>(call.out.data)) + at;
  const bool fp4 = call.out.format == KvFormat::fp4_mla;
  constexpr int kTasks = kPackedLatentDim / (32 * kPackedValues);
  static_assert(kDsMlaScaleDim == 32 * kPackedValues);
  for (int task = threadIdx.x / 32; task <= kTasks; task += kThreads / 32) {
    if (task == kTasks) {
      auto* const rope = reinterpret_cast<__nv_bfloat16*>(token + (fp4 ? kFp4MlaRopeAt : kDsMlaRopeAt));
      const Turn turn = turn_of(call, position, lane);
      const float a = values[kPackedLatentDim + turn.first], b = values[kPackedLatentDim + turn.second];
      rope[turn.first] = __float2bfloat16_rn(a * turn.cos - b * turn.sin);
      rope[turn.second] = __float2bfloat16_rn(b * turn.cos + a * turn.sin);
      continue;
    }
    const int first = (task * 32 + lane) * kPackedValues;
    float x[kPackedValues];
    for (int i = 0; i < kPackedValues; ++i) x[i] = values[first + i] * norm * call.latent_norm[first + i];
    if (fp4) store_fp4_mla(token, first, x);
    else store_ds_mla(token, first, x);
  }
}

// `values`: shared memory for [kv_rank + rope_dim].
template <int kThreads, typename T>
__device__ __forceinline__ void write_token(const LatentRowsCall& call, float* values, int64_t row, int32_t slot, int position) {
  const T* const token = static_cast<const T*>(call.token) + row * call.token_stride;
  float squares = 0;
  for (int i = threadIdx.x; i < call.kv_rank + call.rope_dim; i += kThreads) {
    const float x = to_f32(token[i]);
    values[i] = x;
    if (i < call.kv_rank) squares += x * x;
  }
  const float scale = 1.0f / sqrtf(block_sum<kThreads>(squares) / static_cast<float>(call.kv_rank) + call.norm_eps);
  const int64_t at = slot / call.page_size * call.out.page_stride + slot % call.page_size * call.out.token_stride;
  if (kv_format_is_packed(call.out.format)) return write_packed<kThreads>(call, values, scale, at, position);
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

// Pair `pair` of head `head`.
template <typename T>
__device__ __forceinline__ void rotate_query(const LatentRowsCall& call, int64_t row, int head, const Turn& turn) {
  T* const in = static_cast<T*>(call.q_rope) + row * call.q_stride + head * call.q_head_stride;
  T* const out = static_cast<T*>(call.q_out) + row * call.q_out_stride + head * call.q_out_head_stride;
  const float a = to_f32(in[turn.first]), b = to_f32(in[turn.second]);
  const T first = from_f32<T>(a * turn.cos - b * turn.sin), second = from_f32<T>(b * turn.cos + a * turn.sin);
  out[turn.first] = first;
  out[turn.second] = second;
  if (!call.in_place) return;
  in[turn.first] = first;
  in[turn.second] = second;
}

}  // namespace warpweave::gpu
