// The short convolution of a decode step: one token a request, four channels a thread. All its loads are under way together,
// as nothing here takes longer than one of them.
//
// Grid: x = channels / (4 * kRowsThreads), y = requests.
#pragma once

#include "linear/cuda/gates.cuh"
#include "linear/cuda/rows.h"

namespace warpweave::linear {

WW_DEVICE void store_four(void* to, int64_t index, const float (&value)[4], DType dtype) {
  if (dtype == DType::f32) {
    *reinterpret_cast<float4*>(static_cast<float*>(to) + index) = make_float4(value[0], value[1], value[2], value[3]);
    return;
  }
  const bool bf16 = dtype == DType::bf16;
  const ptx::u32 low = bf16 ? ptx::Bf16::pack(value[0], value[1]) : ptx::F16::pack(value[0], value[1]);
  const ptx::u32 high = bf16 ? ptx::Bf16::pack(value[2], value[3]) : ptx::F16::pack(value[2], value[3]);
  *reinterpret_cast<uint2*>(static_cast<unsigned short*>(to) + index) = make_uint2(low, high);
}

class ConvStep {
 public:
  static constexpr int kChannels = 4;

  // Reads what no kernel writes.
  WW_DEVICE ConvStep(const RowsParams& p, int channel) : p_(p), channel_(channel) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      weight_[c] = *reinterpret_cast<const float4*>(p.conv.weight + int64_t{channel + c} * kConvStepWidth);
      bias_[c] = p.conv.bias == nullptr ? 0.0f : p.conv.bias[channel + c];
    }
  }

  WW_DEVICE void run(int request) const {
    const LinearAttnBatch& batch = p_.linear.batch;
    const int slot = batch.slots[request], from = initial_slot(batch, request);
    if (slot < 0) return;
    const int64_t row = first_row(batch, request);
    ptx::u32 x_bits[4], state_bits[kTaps][4] = {};
    load_four_bits(x_bits, p_.conv.x.data, row * p_.conv.x.token_stride + channel_, p_.conv.x.dtype, true);
    if (from >= 0) {
#pragma unroll
      for (int i = 0; i < kTaps; ++i) load_four_bits(state_bits[i], p_.conv.state, at(from) + 4 * i, p_.conv.state_dtype, true);
    }
    float x[4], state[kTaps][4], out[4];  // state: kTaps inputs of each channel, channel by channel, the newest last
    four_values(x, x_bits, p_.conv.x.dtype);
#pragma unroll
    for (int i = 0; i < kTaps; ++i) four_values(state[i], state_bits[i], p_.conv.state_dtype);
    const auto old = [&](int channel, int tap) -> float& { return state[(channel * kTaps + tap) / 4][(channel * kTaps + tap) % 4]; };
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      float sum = bias_[c] + weight_[c].x * old(c, 0) + weight_[c].y * old(c, 1) + weight_[c].z * old(c, 2);
      sum += weight_[c].w * x[c];
      out[c] = p_.conv.silu ? __fdividef(sum, 1.0f + expf(-sum)) : sum;
      old(c, 0) = old(c, 1), old(c, 1) = old(c, 2), old(c, 2) = x[c];
    }
    store_four(p_.packed, row * p_.channels + channel_, out, p_.packed_dtype);
#pragma unroll
    for (int i = 0; i < kTaps; ++i) store_four(p_.conv.state, at(slot) + 4 * i, state[i], p_.conv.state_dtype);
  }

 private:
  static constexpr int kTaps = kConvStepWidth - 1;
  WW_DEVICE int64_t at(int slot) const { return slot * p_.conv.slot_stride + int64_t{channel_} * kTaps; }

  const RowsParams& p_;
  const int channel_;
  float4 weight_[kChannels];
  float bias_[kChannels];
};

// `settle` waits for the kernels before this one.
template <class Settle>
WW_DEVICE void conv_step(const RowsParams& p, const Settle& settle) {
  const int channel = (blockIdx.x * kRowsThreads + threadIdx.x) * ConvStep::kChannels;
  if (channel >= p.channels) return settle();
  const ConvStep step(p, channel);
  settle();
  step.run(blockIdx.y);
}

}  // namespace warpweave::linear
