// The row-wise parts of a layer: the short convolution (or a copy) that makes q, k and v, and the norm of the output.
//
// A block has up to 64 tokens of one request. The block with a request's first tokens is the one that reads the request's
// convolution state, and it alone writes it, so that both may be one slot. Checkpoints are written by the block that has
// their last token.
#pragma once

#include "linear/cuda/gates.cuh"
#include "linear/cuda/rows.h"

namespace warpweave::linear {

// The tokens of block `index`: blocks are numbered as chunks without checkpoints (chunk_list.cuh), and a request without
// tokens has a block, too.
WW_DEVICE bool find_rows(const LinearParams& p, int index, Chunk& rows) {
  const auto base = [&](int request) { return first_row(p.batch, request) / kChunk + request; };
  int low = 0, high = p.batch.num_requests - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (base(middle) <= index) low = middle;
    else high = middle - 1;
  }
  const int first = first_row(p.batch, low), begin = (index - base(low)) * kChunk;
  const int tokens = first_row(p.batch, low + 1) - first;
  if (begin < 0 || begin > tokens || (begin == tokens && begin > 0)) return false;
  rows = {low, first + begin, min(kChunk, tokens - begin), index};
  return true;
}

// The first checkpoint of a request after more than `begin` tokens; `last`: where the request's end.
WW_DEVICE int first_checkpoint(const LinearAttnBatch& batch, int request, int begin, int last) {
  int next = batch.checkpoint_indptr[request];
  for (int high = last; next < high;) {
    const int middle = (next + high) / 2;
    if (batch.checkpoint_tokens[middle] <= begin) next = middle + 1;
    else high = middle;
  }
  return next;
}

// A convolution without gates: what stands at (row, channel) of its inputs and outputs is multiplied by nothing.
struct NoGates {
  WW_DEVICE float in(float x, int64_t, int) const { return x; }
  WW_DEVICE float out(float sum, int64_t, int) const { return sum; }
};

// One channel of a request.
template <class Gates>
class ConvChannel {
 public:
  WW_DEVICE ConvChannel(const RowsParams& p, const Gates& gates, int request, int channel)
      : p_(p), gates_(gates), batch_(p.linear.batch), first_(first_row(batch_, request)), slot_(batch_.slots[request]),
        from_(initial_slot(batch_, request)), request_(request), channel_(channel), taps_(p.conv.width - 1) {
#pragma unroll
    for (int j = 0; j <= kMost; ++j) {
      const int tap = j - (kMost - taps_);
      weight_[j] = tap >= 0 ? p.conv.weight[int64_t{channel} * p.conv.width + tap] : 0.0f;
    }
    bias_ = p.conv.bias == nullptr ? 0.0f : p.conv.bias[channel];
    v_channel_ = p.conv.v_weight.data == nullptr ? -1 : channel - (p.channels - p.linear.v_heads * p.linear.v_dim);
    if (v_channel_ >= 0) bias_ = 0;
  }

  WW_DEVICE void run(const Chunk& rows) {
    const bool begins = rows.first == first_;
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      const int tap = j - (kMost - taps_);
      state_[j] = 0;
      if (begins && tap >= 0 && from_ >= 0) state_[j] = load_one(p_.conv.state, at(from_, tap), p_.conv.state_dtype);
    }
    if (batch_.parents != nullptr) run_tree(rows);
    else run_chain(rows);
    if (!p_.writes_conv_state) return;
    if (batch_.checkpoint_indptr != nullptr) write_checkpoints(rows.first - first_, rows.first - first_ + rows.tokens);
    if (begins) write_states(first_row(batch_, request_ + 1) - first_);
  }

 private:
  // Weights and inputs stand at the end of their arrays: the newest last, zeros before the first tap.
  static constexpr int kMost = kLinearAttnMaxConvWidth - 1;

  WW_DEVICE int64_t at(int slot, int tap) const { return slot * p_.conv.slot_stride + int64_t{channel_} * taps_ + tap; }
  WW_DEVICE float x(int64_t row) const {
    return gates_.in(load_one(p_.conv.x.data, row * p_.conv.x.token_stride + channel_, p_.conv.x.dtype), row, channel_);
  }
  // The input `back` rows before the request's first one; 1: the newest of the state.
  WW_DEVICE float before(int back) const {
    float value = 0;
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      if (j == kMost - back) value = state_[j];
    }
    return value;
  }
  // The weights of this token, where it has its own.
  WW_DEVICE void load_weight(int64_t row) {
    if (v_channel_ < 0) return;
    const LinearAttnRows& of_tokens = p_.conv.v_weight;
    const int64_t first = row * of_tokens.token_stride + int64_t{v_channel_} * p_.conv.width;
#pragma unroll
    for (int j = 0; j <= kMost; ++j) {
      const int tap = j - (kMost - taps_);
      if (tap >= 0) weight_[j] = load_one(of_tokens.data, first + tap, of_tokens.dtype);
    }
  }
  WW_DEVICE void put(int64_t row, float sum) const {
    if (p_.conv.silu) sum = __fdividef(sum, 1.0f + expf(-sum));
    store_one(p_.packed, row * p_.channels + channel_, gates_.out(sum, row, channel_), p_.packed_dtype);
  }

  WW_DEVICE void run_chain(const Chunk& rows) {
    float window[kMost];  // inputs before the row, the newest last
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      const int back = kMost - j, row = rows.first - back;
      window[j] = 0;
      if (back <= taps_) window[j] = row >= first_ ? x(row) : before(first_ - row);
    }
#pragma unroll 4
    for (int i = 0; i < rows.tokens; ++i) {
      const float value = x(rows.first + i);
      load_weight(rows.first + i);
      float sum = bias_;
#pragma unroll
      for (int j = 0; j < kMost; ++j) sum += weight_[j] * window[j];
      sum += weight_[kMost] * value;
      put(rows.first + i, sum);
#pragma unroll
      for (int j = 0; j + 1 < kMost; ++j) window[j] = window[j + 1];
      window[kMost - 1] = value;
    }
  }
  // The input `back` nodes up from a node.
  WW_DEVICE float up(int node, int back) const {
    while (back > 0 && node >= 0) {
      node = batch_.parents[first_ + node];
      --back;
    }
    return node >= 0 ? x(first_ + node) : before(back + 1);
  }
  WW_DEVICE void run_tree(const Chunk& rows) {
    for (int i = 0; i < rows.tokens; ++i) {
      load_weight(rows.first + i);
      float sum = bias_;
#pragma unroll
      for (int j = 0; j <= kMost; ++j) {
        if (kMost - j <= taps_) sum += weight_[j] * up(i, kMost - j);
      }
      put(rows.first + i, sum);
    }
  }

  // What a slot holds after `tokens` of the request's rows.
  WW_DEVICE void write_state(int slot, int tokens) const {
    for (int j = 0; j < taps_; ++j) {
      const int row = tokens - taps_ + j;  // within the request
      store_one(p_.conv.state, at(slot, j), row >= 0 ? x(first_ + row) : before(-row), p_.conv.state_dtype);
    }
  }
  WW_DEVICE void write_states(int tokens) const {
    if (batch_.accepted != nullptr) {
      int last = batch_.accepted[request_];
      if (batch_.parents == nullptr) {
        write_state(slot_, last + 1);
      } else {
        for (int j = taps_ - 1; j >= 0; --j) {
          const float value = last >= 0 ? x(first_ + last) : before(-last);
          store_one(p_.conv.state, at(slot_, j), value, p_.conv.state_dtype);
          last = last >= 0 ? batch_.parents[first_ + last] : last - 1;
        }
      }
      return;
    }
    write_state(slot_, tokens);
  }
  // Those after more than `begin` tokens and at most `end`.
  WW_DEVICE void write_checkpoints(int begin, int end) const {
    const int last = batch_.checkpoint_indptr[request_ + 1];
    int next = first_checkpoint(batch_, request_, begin, last);
    for (; next < last && batch_.checkpoint_tokens[next] <= end; ++next) {
      write_state(batch_.checkpoint_slots[next], batch_.checkpoint_tokens[next]);
    }
  }

  const RowsParams& p_;
  const Gates& gates_;
  const LinearAttnBatch& batch_;
  const int first_, slot_, from_, request_, channel_, taps_;
  float weight_[kLinearAttnMaxConvWidth], state_[kMost];
  float bias_;
  int v_channel_;  // among v's, where their weights are of each token; else -1
};

// Grid: x = channels / kRowsThreads, y = blocks.
WW_DEVICE void make_rows(const RowsParams& p) {
  Chunk rows;
  const int channel = blockIdx.x * kRowsThreads + threadIdx.x;
  if (channel >= p.channels || !find_rows(p.linear, blockIdx.y, rows) || p.linear.batch.slots[rows.request] < 0) return;
  if (p.has_conv) {
    ConvChannel(p, NoGates(), rows.request, channel).run(rows);
    return;
  }
  const LinearParams& l = p.linear;
  const int of_q = l.k_heads * l.k_dim;
  const LinearAttnRows& from = channel < of_q ? l.q : channel < 2 * of_q ? l.k : l.v;
  const int within = channel < of_q ? channel : channel < 2 * of_q ? channel - of_q : channel - 2 * of_q;
  const int dim = channel < 2 * of_q ? l.k_dim : l.v_dim;
  for (int i = 0; i < rows.tokens; ++i) {
    const int64_t row = rows.first + i;
    store_one(p.packed, row * p.channels + channel,
              load_one(from.data, row * from.token_stride + within / dim * from.head_stride + within % dim, from.dtype), p.packed_dtype);
  }
}

// A warp normalizes a token's head; padded rows become zeros. Grid: x = v heads, y = blocks.
WW_DEVICE void norm_rows(const RowsParams& p) {
  constexpr int kMost = kLinearAttnMaxHeadDim / 32;
  const LinearParams& l = p.linear;
  Chunk rows;
  if (!find_rows(l, blockIdx.y, rows)) return;
  const int lane = threadIdx.x % 32, head = blockIdx.x;
  const bool padded = l.batch.slots[rows.request] < 0;
  for (int i = threadIdx.x / 32; i < rows.tokens; i += kRowsThreads / 32) {
    const int64_t row = rows.first + i, at = row * l.out_token_stride + int64_t{head} * l.v_dim;
    const int64_t from = row * p.norm_from_stride + int64_t{head} * l.v_dim;
    float value[kMost], sum = 0;
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      const int c = lane + 32 * j;
      value[j] = c < l.v_dim && !padded ? load_one(p.norm_from, from + c, p.norm_from_dtype) : 0.0f;
      sum += value[j] * value[j];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    const float norm = rsqrtf(sum / static_cast<float>(l.v_dim) + p.norm.eps);
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      const int c = lane + 32 * j;
      if (c >= l.v_dim) continue;
      float gate = 1;
      if (p.norm.z.data != nullptr && !padded) {
        const float z = load_one(p.norm.z.data, row * p.norm.z.token_stride + head * p.norm.z.head_stride + c, p.norm.z.dtype);
        gate = (p.norm.gate == LinearAttnNormGate::silu ? z : 1.0f) / (1.0f + expf(-z));
      }
      store_one(l.out, at + c, value[j] * norm * p.norm.weight[c] * gate, l.out_dtype);
    }
  }
}

}  // namespace warpweave::linear
