// What a head task reads and writes: both states, q, k and v through the convolution, gates, outputs.
#include <algorithm>
#include <cmath>

#include "base/float16.h"
#include "linear/cpu/head_parts.h"
#include "linear/cpu/head_task.h"

namespace warpweave {

using namespace linear_head;

namespace {

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }
float scalar(const LinearAttnRows& rows, int64_t at) {
  if (rows.dtype == DType::f32) return static_cast<const float*>(rows.data)[at];
  const uint16_t bits = static_cast<const uint16_t*>(rows.data)[at];
  return rows.dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

}  // namespace

void LinearHeadTask::load_windows() {
  const LinearAttnConv& conv = *call_.conv;
  const int taps = conv.width - 1;
  const auto load = [&](int channel, int dim, int window) {
    float* out = s_.windows + window * kMaxWindow * kMaxDim;
    if (initial_ < 0) return static_cast<void>(std::fill_n(out, taps * kMaxDim, 0.0f));
    const int64_t at = initial_ * conv.slot_stride + int64_t{channel} * taps;
    // Channel by channel, so 16 channels are whole vectors.
    for (int c = 0; c < dim; c += kBlock) {
      kernels_.widen(offset(static_cast<const void*>(conv.state), conv.state_dtype, at + c * taps),
                     type_of(conv.state_dtype), kBlock * taps, s_.block);
      for (int i = 0; i < kBlock; ++i) {
        for (int j = 0; j < taps; ++j) out[j * kMaxDim + c + i] = s_.block[i * taps + j];
      }
    }
  };
  load(k_head_ * shape_.k_dim, shape_.k_dim, 0);
  load((shape_.k_heads + k_head_) * shape_.k_dim, shape_.k_dim, 1);
  for (int i = 0; i < shape_.heads_per_k(); ++i) {
    load(2 * shape_.k_heads * shape_.k_dim + v_head(i) * shape_.v_dim, shape_.v_dim, 2 + i);
  }
}

void LinearHeadTask::store_windows(int slot) {
  const LinearAttnConv& conv = *call_.conv;
  const int taps = conv.width - 1;
  const auto store = [&](int channel, int dim, int window) {
    const float* rows = s_.windows + window * kMaxWindow * kMaxDim;
    const int64_t at = slot * conv.slot_stride + int64_t{channel} * taps;
    for (int c = 0; c < dim; c += kBlock) {
      for (int i = 0; i < kBlock; ++i) {
        for (int j = 0; j < taps; ++j) s_.block[i * taps + j] = rows[j * kMaxDim + c + i];
      }
      kernels_.narrow(s_.block, kBlock * taps, type_of(conv.state_dtype),
                      offset(conv.state, conv.state_dtype, at + c * taps));
    }
  };
  store(k_head_ * shape_.k_dim, shape_.k_dim, 0);
  store((shape_.k_heads + k_head_) * shape_.k_dim, shape_.k_dim, 1);
  for (int i = 0; i < shape_.heads_per_k(); ++i) {
    store(2 * shape_.k_heads * shape_.k_dim + v_head(i) * shape_.v_dim, shape_.v_dim, 2 + i);
  }
}

void LinearHeadTask::load_state(int index) {
  float* out = s_.state_t + int64_t{index} * shape_.k_dim * s_.v_stride;
  if (initial_ < 0) return static_cast<void>(std::fill_n(out, int64_t{shape_.k_dim} * s_.v_stride, 0.0f));
  const LinearAttnState& state = call_.state;
  for (int row = 0; row < shape_.v_dim; row += kBlock) {
    const void* from = offset(state.data, state.dtype, state_at(initial_, index) + int64_t{row} * shape_.k_dim);
    kernels_.widen(from, type_of(state.dtype), kBlock * shape_.k_dim, s_.block);
    kernels_.transpose({s_.block, shape_.k_dim, kBlock, shape_.k_dim}, out + row, s_.v_stride);
  }
}

void LinearHeadTask::store_state(int index, int slot) {
  float* in = s_.state_t + int64_t{index} * shape_.k_dim * s_.v_stride;
  const LinearAttnState& state = call_.state;
  for (int row = 0; row < shape_.v_dim; row += kBlock) {
    kernels_.transpose({in + row, s_.v_stride, shape_.k_dim, kBlock}, s_.block, shape_.k_dim);
    kernels_.narrow(s_.block, kBlock * shape_.k_dim, type_of(state.dtype),
                    offset(state.data, state.dtype, state_at(slot, index) + int64_t{row} * shape_.k_dim));
  }
}

void LinearHeadTask::load_part(const Tokens& tokens, const Part& part, const LinearAttnRows& plain, float* out,
                               int64_t stride) {
  if (call_.conv != nullptr) {
    convolve(tokens, part, out, stride);
  } else {
    for (int t = 0; t < tokens.count; ++t) {
      const int64_t at = tokens.row(t) * plain.token_stride + part.head * plain.head_stride;
      kernels_.widen(offset(plain.data, plain.dtype, at), type_of(plain.dtype), part.dim, out + t * stride);
    }
  }
  for (int t = tokens.count; t < padded(tokens.count, kBlock); ++t) std::fill_n(out + t * stride, part.dim, 0.0f);
}

// The rows before the run are its first conv_x rows; the last width - 1 rows become the next run's.
void LinearHeadTask::convolve(const Tokens& tokens, const Part& part, float* out, int64_t stride) {
  const LinearAttnConv& conv = *call_.conv;
  const int taps = conv.width - 1;
  float* window = s_.windows + part.window * kMaxWindow * kMaxDim;
  std::copy_n(window, taps * kMaxDim, s_.conv_x);
  for (int t = 0; t < tokens.count; ++t) {
    kernels_.widen(offset(conv.x.data, conv.x.dtype, tokens.row(t) * conv.x.token_stride + part.channel),
                   type_of(conv.x.dtype), part.dim, s_.conv_x + (taps + t) * kMaxDim);
    int source = taps + t;
    for (int j = taps; j >= 0; --j) {
      s_.sources[t * conv.width + j] = source;
      const int node = source - taps;
      source = node >= 0 && tokens.parents != nullptr ? taps + tokens.parents[node] : source - 1;
    }
  }
  LinearConvRows rows{.x = s_.conv_x, .x_stride = kMaxDim, .sources = s_.sources, .weight = s_.conv_weight,
                      .bias = conv.bias != nullptr ? conv.bias + part.channel : nullptr, .tokens = tokens.count,
                      .width = conv.width, .dim = part.dim, .silu = conv.silu, .out = out, .out_stride = stride};
  if (conv.v_weight.data != nullptr && part.channel >= shape_.v_channel()) {
    convolve_by_token(tokens, part, rows);
  } else {
    for (int c = 0; c < part.dim; ++c) {
      for (int j = 0; j < conv.width; ++j) {
        s_.conv_weight[j * part.dim + c] = conv.weight[int64_t{part.channel + c} * conv.width + j];
      }
    }
    kernels_.conv(rows);
  }
  std::copy_n(s_.conv_x + int64_t{tokens.count} * kMaxDim, taps * kMaxDim, window);
}

// The same with weights of each token's own.
void LinearHeadTask::convolve_by_token(const Tokens& tokens, const Part& part, LinearConvRows rows) {
  const LinearAttnRows& weight = call_.conv->v_weight;
  const int width = rows.width;
  rows.bias = nullptr;
  rows.tokens = 1;
  for (int t = 0; t < tokens.count; ++t) {
    const int64_t at = tokens.row(t) * weight.token_stride + int64_t{part.channel - shape_.v_channel()} * width;
    for (int c = 0; c < part.dim; c += kBlock) {
      kernels_.widen(offset(weight.data, weight.dtype, at + int64_t{c} * width), type_of(weight.dtype), kBlock * width,
                     s_.block);
      for (int i = 0; i < kBlock; ++i) {
        for (int j = 0; j < width; ++j) s_.conv_weight[j * part.dim + c + i] = s_.block[i * width + j];
      }
    }
    kernels_.conv(rows);
    rows.sources += width;
    rows.out += rows.out_stride;
  }
}

void LinearHeadTask::load_qk(const Tokens& tokens) {
  const int dim = shape_.k_dim;
  load_part(tokens, {k_head_, k_head_ * dim, dim, 0}, call_.q, s_.q, s_.k_stride);
  load_part(tokens, {k_head_, (shape_.k_heads + k_head_) * dim, dim, 1}, call_.k, s_.k, s_.k_stride);
  kernels_.l2norm({s_.q, s_.k_stride, tokens.count, dim}, call_.l2norm, call_.l2norm_eps, call_.scale);
  if (call_.l2norm) kernels_.l2norm({s_.k, s_.k_stride, tokens.count, dim}, true, call_.l2norm_eps, 1.0f);
}

void LinearHeadTask::load_v(const Tokens& tokens, int index) {
  const int head = v_head(index);
  const Part part{head, 2 * shape_.k_heads * shape_.k_dim + head * shape_.v_dim, shape_.v_dim, 2 + index};
  load_part(tokens, part, call_.v, s_.v, s_.v_stride);
}

void LinearHeadTask::load_gates(const Tokens& tokens, int index) {
  const int head = v_head(index), dim = shape_.decay_dim();
  const LinearAttnGates* gates = call_.gates;
  const LinearAttnRows& g = gates != nullptr ? gates->a : call_.g;
  const LinearAttnRows& b = gates != nullptr ? gates->b : call_.beta;
  const float rate = gates != nullptr ? std::exp(gates->a_log[head]) : 0;
  const float* bias = gates != nullptr && gates->dt_bias != nullptr ? gates->dt_bias + head * dim : nullptr;
  for (int t = 0; t < tokens.count; ++t) {
    const int64_t row = tokens.row(t);
    const float beta = scalar(b, row * b.token_stride + head * b.head_stride);
    s_.beta[t] = gates != nullptr ? sigmoid(beta) : beta;
    const int64_t at = row * g.token_stride + head * g.head_stride;
    if (!is_kda()) {
      const float value = scalar(g, at);
      s_.decay[t] = std::exp(gates != nullptr ? -rate * softplus(value + (bias != nullptr ? *bias : 0)) : value);
      continue;
    }
    float* decay = s_.decay + t * s_.k_stride;
    kernels_.widen(offset(g.data, g.dtype, at), type_of(g.dtype), dim, decay);
    gates != nullptr ? kernels_.decay_row(decay, bias, rate, dim, decay) : kernels_.exp_row(decay, dim, decay);
  }
  for (int t = tokens.count; t < padded(tokens.count, 4); ++t) s_.beta[t] = 0;
}

void LinearHeadTask::store_outputs(const Tokens& tokens, int index) {
  const LinearAttnNorm* norm = call_.norm;
  for (int t = 0; t < tokens.count; ++t) {
    float* o = s_.o + t * s_.v_stride;
    const int64_t row = tokens.row(t);
    if (norm != nullptr) {
      const LinearAttnRows& z = norm->z;
      if (z.data != nullptr) {
        kernels_.widen(offset(z.data, z.dtype, row * z.token_stride + v_head(index) * z.head_stride), type_of(z.dtype),
                       shape_.v_dim, s_.block);
      }
      kernels_.norm_gate({.o = o,
                          .z = z.data != nullptr ? s_.block : nullptr,
                          .weight = norm->weight,
                          .dim = shape_.v_dim,
                          .eps = norm->eps,
                          .silu = norm->gate == LinearAttnNormGate::silu});
    }
    kernels_.narrow(
        o, shape_.v_dim, type_of(call_.out_dtype),
        offset(call_.out, call_.out_dtype, row * call_.out_token_stride + int64_t{v_head(index)} * shape_.v_dim));
  }
}

}  // namespace warpweave
