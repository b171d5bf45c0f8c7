// Loads of somebody else's rows as f32, and the gates of a token.
#pragma once

#include "device/cuda/ptx.h"
#include "linear/cuda/linear_params.h"

namespace warpweave::linear {

inline constexpr float kLog2e = 1.4426950408889634f;

// Loads come apart from what is made of them, and none stands in a branch: so many are under way at once.

// An element as it is stored.
WW_DEVICE ptx::u32 load_bits(const void* data, int64_t index, DType dtype) {
  const bool wide = dtype == DType::f32;
  const char* const at = static_cast<const char*>(data) + index * (wide ? 4 : 2);
#if defined(__CUDA_ARCH__)
  ptx::u32 bits;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.u32 %0, [%1]; @!p ld.global.u16 %0, [%1];}\n"
               : "=r"(bits) : "l"(at), "r"(static_cast<ptx::u32>(wide)));
  return bits;
#else
  return wide ? *reinterpret_cast<const ptx::u32*>(at) : *reinterpret_cast<const unsigned short*>(at);
#endif
}
WW_DEVICE float value_of(ptx::u32 bits, DType dtype) {
  const float narrow = dtype == DType::bf16 ? ptx::Bf16::low(bits) : ptx::F16::low(bits);
  return dtype == DType::f32 ? __uint_as_float(bits) : narrow;
}
WW_DEVICE float load_one(const void* data, int64_t index, DType dtype) { return value_of(load_bits(data, index, dtype), dtype); }

// Four neighbours: four words, or two of pairs. `aligned`: to their own size.
WW_DEVICE void load_four_bits(ptx::u32 (&w)[4], const void* data, int64_t index, DType dtype, bool aligned) {
  const bool wide = dtype == DType::f32;
  if (!aligned) {
    for (int i = 0; i < 4; ++i) w[i] = load_bits(data, index + i, dtype);
    if (!wide) w[0] |= w[1] << 16, w[1] = w[2] | w[3] << 16;
    return;
  }
  const char* const at = static_cast<const char*>(data) + index * (wide ? 4 : 2);
#if defined(__CUDA_ARCH__)
  w[2] = w[3] = 0;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; @!p ld.global.v2.u32 {%0, %1}, [%4];}\n"
               : "=r"(w[0]), "=r"(w[1]), "+r"(w[2]), "+r"(w[3]) : "l"(at), "r"(static_cast<ptx::u32>(wide)));
#else
  for (int i = 0; i < (wide ? 4 : 2); ++i) w[i] = reinterpret_cast<const ptx::u32*>(at)[i];
#endif
}
WW_DEVICE void four_values(float (&to)[4], const ptx::u32 (&w)[4], DType dtype) {
  const bool wide = dtype == DType::f32, bf16 = dtype == DType::bf16;
  const float narrow[4] = {bf16 ? ptx::Bf16::low(w[0]) : ptx::F16::low(w[0]), bf16 ? ptx::Bf16::high(w[0]) : ptx::F16::high(w[0]),
                           bf16 ? ptx::Bf16::low(w[1]) : ptx::F16::low(w[1]), bf16 ? ptx::Bf16::high(w[1]) : ptx::F16::high(w[1])};
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = wide ? __uint_as_float(w[i]) : narrow[i];
}

// log2(1 + e^x)
WW_DEVICE float softplus_log2(float x) {
  const float e = ptx::exp2_approx(fminf(x, 30.0f) * kLog2e);
  const float small = kLog2e * e * (1.0f + e * (-0.5f + e * (0.33333333f - 0.25f * e)));
  const float log2 = e < 0.02f ? small : ptx::log2_approx(1.0f + e);
  return x > 20.0f ? x * kLog2e : log2;
}
WW_DEVICE float bounded_log2(float log2_decay) { return fmaxf(log2_decay, kLeastLog2Decay); }

// What a token's gates are made from, in one head.
struct GateBits {
  ptx::u32 a = 0, b = 0;
  float slope = 0, bias = 0;
};
// `per_channel`: KDA, whose decays load_decays has; only beta is loaded.
WW_DEVICE GateBits load_gates(const LinearParams& p, int64_t token, int head, bool per_channel) {
  GateBits bits;
  const LinearAttnRows &a = p.has_gates ? p.gates.a : p.g, &b = p.has_gates ? p.gates.b : p.beta;
  bits.b = load_bits(b.data, token * b.token_stride + head * b.head_stride, b.dtype);
  if (p.has_gates) bits.slope = p.gates.a_log[head];
  if (per_channel) return bits;
  bits.a = load_bits(a.data, token * a.token_stride + head * a.head_stride, a.dtype);
  if (p.has_gates && p.gates.dt_bias != nullptr) bits.bias = p.gates.dt_bias[head];
  return bits;
}
WW_DEVICE float log2_decay_of(const LinearParams& p, const GateBits& bits) {
  if (!p.has_gates) return bounded_log2(__uint_as_float(bits.a) * kLog2e);
  return bounded_log2(-expf(bits.slope) * softplus_log2(value_of(bits.a, p.gates.a.dtype) + bits.bias));
}
WW_DEVICE float beta_of(const LinearParams& p, const GateBits& bits) {
  if (!p.has_gates) return __uint_as_float(bits.b);
  return 1.0f / (1.0f + expf(-value_of(bits.b, p.gates.b.dtype)));
}

// KDA's decays of four channels.
struct DecayBits {
  ptx::u32 a[4] = {};
  float bias[4] = {};
};
WW_DEVICE void load_decays(DecayBits& bits, const LinearParams& p, int64_t token, int head, int channel) {
  const LinearAttnRows& rows = p.has_gates ? p.gates.a : p.g;
  load_four_bits(bits.a, rows.data, token * rows.token_stride + head * rows.head_stride + channel, rows.dtype, p.vectors);
  if (!p.has_gates || p.gates.dt_bias == nullptr) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) bits.bias[i] = p.gates.dt_bias[head * p.k_dim + channel + i];
}
// `slope`: what GateBits has.
WW_DEVICE void log2_decays_of(float (&to)[4], const LinearParams& p, const DecayBits& bits, float slope) {
  const LinearAttnRows& rows = p.has_gates ? p.gates.a : p.g;
  four_values(to, bits.a, rows.dtype);
  const float times = p.has_gates ? -expf(slope) : kLog2e;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (p.has_gates) to[i] = softplus_log2(to[i] + bits.bias[i]);
    to[i] = bounded_log2(to[i] * times);
  }
}

// Of eight neighbouring lanes, in each of them.
WW_DEVICE float eight_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  x += __shfl_xor_sync(~0u, x, 2);
  return x + __shfl_xor_sync(~0u, x, 4);
}

// ---- requests ----

WW_DEVICE int first_row(const LinearAttnBatch& batch, int request) {
  return batch.q_indptr == nullptr ? request : batch.q_indptr[request];
}
WW_DEVICE int initial_slot(const LinearAttnBatch& batch, int request) {
  return (batch.initial_slots == nullptr ? batch.slots : batch.initial_slots)[request];
}

WW_DEVICE void store_one(void* to, int64_t index, float value, DType dtype) {
  if (dtype == DType::f32) {
    static_cast<float*>(to)[index] = value;
  } else {
    const ptx::u32 bits = dtype == DType::bf16 ? ptx::Bf16::pack(value, 0) : ptx::F16::pack(value, 0);
    static_cast<unsigned short*>(to)[index] = static_cast<unsigned short>(bits);
  }
}

}  // namespace warpweave::linear
