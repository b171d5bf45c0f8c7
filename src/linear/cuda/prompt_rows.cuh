// The row-wise parts of prompts (rows.cuh) in 16 bits, eight neighbouring channels a thread and a few tokens: where rows are many,
// memory is to be the limit. A block of 64 tokens (find_rows) is cut into runs; the first run of a request is the one that
// reads its convolution state, and alone writes it; checkpoints are written by the run that has their last token.
#pragma once

#include "linear/cuda/rows.cuh"

namespace warpweave::linear {

inline constexpr int kPromptThreads = 128;
inline constexpr int kPromptChannels = 8;   // of a thread
inline constexpr int kConvTokens = 8, kNormTokens = 4;  // of a run

WW_DEVICE uint4 load_eight(const void* data, int64_t index) {
  return *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(data) + index);
}
template <class E>
WW_DEVICE void eight_values(float (&to)[8], const uint4& bits) {
  const ptx::u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) to[2 * i] = E::low(words[i]), to[2 * i + 1] = E::high(words[i]);
}
template <class E>
WW_DEVICE void store_eight(void* data, int64_t index, const float (&from)[8]) {
  *reinterpret_cast<uint4*>(static_cast<unsigned short*>(data) + index) =
      uint4{E::pack(from[0], from[1]), E::pack(from[2], from[3]), E::pack(from[4], from[5]), E::pack(from[6], from[7])};
}

// Run `index` of all blocks' tokens, or false: it has none. A request without tokens has its block's first run.
template <int kTokens>
WW_DEVICE bool find_run(const LinearParams& p, int index, Chunk& rows) {
  constexpr int kRuns = kChunk / kTokens;
  if (!find_rows(p, index / kRuns, rows)) return false;
  const int begin = index % kRuns * kTokens;
  if (begin > 0 && begin >= rows.tokens) return false;
  rows.first += begin;
  rows.tokens = min(kTokens, rows.tokens - begin);
  return true;
}

// A convolution of width 4 over eight channels of a run.
template <class E>
class PromptConv {
 public:
  // Reads what no kernel writes.
  WW_DEVICE PromptConv(const RowsParams& p, int channel) : p_(p), channel_(channel) {
#pragma unroll
    for (int c = 0; c < kPromptChannels; ++c) {
      weight_[c] = *reinterpret_cast<const float4*>(p.conv.weight + int64_t{channel + c} * kConvStepWidth);
      bias_[c] = p.conv.bias == nullptr ? 0.0f : p.conv.bias[channel + c];
    }
  }

  WW_DEVICE void run(const Chunk& rows) {
    const LinearAttnBatch& batch = p_.linear.batch;
    first_ = first_row(batch, rows.request);
    from_ = initial_slot(batch, rows.request);
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      const int row = rows.first - kTaps + j;
      if (row >= first_) eight_values<E>(window_[j], x(row));
      else load_state(row - first_, window_[j]);
    }
    if (rows.tokens == kConvTokens) make_all(rows.first);
    else make_some(rows);
    if (!p_.writes_conv_state) return;
    const int begin = rows.first - first_;
    if (batch.checkpoint_indptr != nullptr) write_checkpoints(rows.request, begin, begin + rows.tokens);
    if (begin == 0) write_state(batch.slots[rows.request], first_row(batch, rows.request + 1) - first_);
  }

 private:
  static constexpr int kTaps = kConvStepWidth - 1;

  WW_DEVICE uint4 x(int row) const { return load_eight(p_.conv.x.data, int64_t{row} * p_.conv.x.token_stride + channel_); }
  // Inputs of a row before the request's first: -1 is the newest of the state.
  WW_DEVICE void load_state(int row, float (&to)[8]) const {
#pragma unroll
    for (int c = 0; c < kPromptChannels; ++c) {
      to[c] = from_ < 0 ? 0.0f : load_one(p_.conv.state, at(from_, c, kTaps + row), p_.conv.state_dtype);
    }
  }
  WW_DEVICE int64_t at(int slot, int channel, int tap) const {
    return slot * p_.conv.slot_stride + int64_t{channel_ + channel} * kTaps + tap;
  }

  WW_DEVICE void make_all(int first) {
    uint4 bits[kConvTokens];
#pragma unroll
    for (int i = 0; i < kConvTokens; ++i) bits[i] = x(first + i);
#pragma unroll
    for (int i = 0; i < kConvTokens; ++i) put(first + i, bits[i]);
  }
  WW_DEVICE void make_some(const Chunk& rows) {
    constexpr int kTogether = 4;
#pragma unroll 1
    for (int begin = 0; begin < rows.tokens; begin += kTogether) {
      uint4 bits[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) bits[i] = x(rows.first + min(begin + i, rows.tokens - 1));
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (begin + i < rows.tokens) put(rows.first + begin + i, bits[i]);
      }
    }
  }

  WW_DEVICE void put(int row, const uint4& bits) {
    float value[8], out[8];
    eight_values<E>(value, bits);
#pragma unroll
    for (int c = 0; c < kPromptChannels; ++c) {
      float sum = bias_[c] + weight_[c].x * window_[0][c] + weight_[c].y * window_[1][c] + weight_[c].z * window_[2][c];
      sum += weight_[c].w * value[c];
      out[c] = p_.conv.silu ? __fdividef(sum, 1.0f + __expf(-sum)) : sum;
      window_[0][c] = window_[1][c], window_[1][c] = window_[2][c], window_[2][c] = value[c];
    }
    store_eight<E>(p_.packed, int64_t{row} * p_.channels + channel_, out);
  }

  // What a slot holds after `tokens` of the request's rows. Older rows come first: the slot may be the one that is read.
  WW_DEVICE void write_state(int slot, int tokens) const {
#pragma unroll 1
    for (int j = 0; j < kTaps; ++j) {
      const int row = tokens - kTaps + j;  // within the request
      float value[8];
      if (row >= 0) eight_values<E>(value, x(first_ + row));
      else load_state(row, value);
#pragma unroll
      for (int c = 0; c < kPromptChannels; ++c) store_one(p_.conv.state, at(slot, c, j), value[c], p_.conv.state_dtype);
    }
  }
  // Those after more than `begin` tokens and at most `end`.
  WW_DEVICE void write_checkpoints(int request, int begin, int end) const {
    const LinearAttnBatch& batch = p_.linear.batch;
    const int last = batch.checkpoint_indptr[request + 1];
    int next = first_checkpoint(batch, request, begin, last);
    for (; next < last && batch.checkpoint_tokens[next] <= end; ++next) {
      write_state(batch.checkpoint_slots[next], batch.checkpoint_tokens[next]);
    }
  }

  const RowsParams& p_;
  const int channel_;
  int first_ = 0, from_ = -1;
  float4 weight_[kPromptChannels];
  float bias_[kPromptChannels];
  float window_[kTaps][kPromptChannels];  // inputs before the row, the newest last
};

// Grid: x = channels / (8 * kPromptThreads), y = runs. `settle` waits for the kernels before this one.
template <class E, class Settle>
WW_DEVICE void make_prompt_rows(const RowsParams& p, const Settle& settle) {
  const int channel = (blockIdx.x * kPromptThreads + threadIdx.x) * kPromptChannels;
  Chunk rows;
  if (channel >= p.channels || !find_run<kConvTokens>(p.linear, blockIdx.y, rows) ||
      p.linear.batch.slots[rows.request] < 0) {
    return settle();
  }
  PromptConv<E> conv(p, channel);
  settle();
  conv.run(rows);
}

// The norm of the outputs: v_dim / 8 lanes of a warp have a token's head. Grid: x = v_heads * v_dim / (8 * kPromptThreads),
// y = runs.
template <class E, class Settle>
WW_DEVICE void norm_prompt_rows(const RowsParams& p, const Settle& settle) {
  const LinearParams& l = p.linear;
  const int column = (blockIdx.x * kPromptThreads + threadIdx.x) * kPromptChannels, lanes = l.v_dim / kPromptChannels;
  const bool has = column < l.v_heads * l.v_dim;  // of whole heads
  const int head = has ? column / l.v_dim : 0, channel = has ? column % l.v_dim : 0;
  Chunk rows;
  if (!find_run<kNormTokens>(l, blockIdx.y, rows) || rows.tokens == 0) return settle();
  const bool padded = l.batch.slots[rows.request] < 0, gated = p.norm.z.data != nullptr;
  float weight[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) weight[c] = p.norm.weight[channel + c];
  settle();
  uint4 bits[kNormTokens] = {}, gate_bits[kNormTokens] = {};
#pragma unroll
  for (int i = 0; i < kNormTokens; ++i) {
    const int64_t row = rows.first + min(i, rows.tokens - 1);
    if (padded || !has) continue;
    bits[i] = load_eight(p.norm_from, row * p.norm_from_stride + column);
    if (gated) gate_bits[i] = load_eight(p.norm.z.data, row * p.norm.z.token_stride + head * p.norm.z.head_stride + channel);
  }
#pragma unroll
  for (int i = 0; i < kNormTokens; ++i) {
    float value[8], z[8], sum = 0;
    eight_values<E>(value, bits[i]), eight_values<E>(z, gate_bits[i]);
#pragma unroll
    for (const float v : value) sum += v * v;
    for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    const float norm = rsqrtf(sum / static_cast<float>(l.v_dim) + p.norm.eps);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float gate = __fdividef(p.norm.gate == LinearAttnNormGate::silu ? z[c] : 1.0f, 1.0f + __expf(-z[c]));
      value[c] *= norm * weight[c] * (gated && !padded ? gate : 1.0f);
    }
    if (has && i < rows.tokens) store_eight<E>(l.out, (rows.first + i) * l.out_token_stride + column, value);
  }
}

}  // namespace warpweave::linear
