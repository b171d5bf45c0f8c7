#include "linear/cpu/head_task.h"

#include <algorithm>
#include <cstring>

#include "linear/cpu/head_parts.h"

namespace warpweave {

using namespace linear_head;

namespace {

// Below this the chunk form costs more than it saves.
constexpr int kStepTokens = 8;

}  // namespace

size_t LinearHeadScratch::lay_out(const LinearAttnShape& shape, int conv_width, float* memory) {
  k_stride = shape.k_dim + 16;
  v_stride = shape.v_dim + 16;
  const bool kda = shape.kind == LinearAttnKind::kda;
  size_t used = 0;
  const auto take = [&](int64_t rows, int64_t stride) {
    float* at = memory != nullptr ? memory + used : nullptr;
    used += static_cast<size_t>(padded(static_cast<int>(rows * stride), 16));
    return at;
  };
  const auto take_if = [&](bool wanted, int64_t rows, int64_t stride) { return take(wanted ? rows : 0, stride); };
  k = take(kTokens, k_stride);
  q = take(kTokens, k_stride);
  v = take(kTokens, v_stride);
  u = take(kTokens, v_stride);
  o = take(kTokens, v_stride);
  decay = take(kTokens, kda ? k_stride : 1);
  decayed_k = take_if(kda, kTokens, k_stride);
  decayed_q = take_if(kda, kTokens, k_stride);
  local_k = take_if(kda, kBlock, k_stride);
  local_q = take_if(kda, kBlock, k_stride);
  reach = take_if(kda, kTokens, k_stride);
  keys_t = take(shape.k_dim, kPairStride);
  kk = take_if(!kda, kTokens, kPairStride);
  qk = take_if(!kda, kTokens, kPairStride);
  weights = take_if(!kda, kTokens, kPairStride);
  minus_a = take(kTokens, kPairStride);
  p = take(kTokens, kPairStride);
  state_t = take(shape.heads_per_k() * shape.k_dim, v_stride);
  block = take(kBlock, kMaxDim);
  beta = take(kTokens, 1);
  kq = take(kTokens, 1);
  since_start = take(kTokens, 1);
  end_decay = take(kMaxDim, 1);
  const bool conv = conv_width > 0;
  conv_x = take_if(conv, kTokens + kMaxWindow, kMaxDim);
  conv_weight = take_if(conv, kLinearAttnMaxConvWidth, kMaxDim);
  windows = take_if(conv, (2 + shape.heads_per_k()) * kMaxWindow, kMaxDim);
  sources = reinterpret_cast<int32_t*>(take_if(conv, kTokens, kLinearAttnMaxConvWidth));
  return used;
}

LinearHeadScratch::LinearHeadScratch(const LinearAttnShape& shape, int conv_width, float* memory) {
  lay_out(shape, conv_width, memory);
}
size_t LinearHeadScratch::floats(const LinearAttnShape& shape, int conv_width) {
  LinearHeadScratch scratch;
  return scratch.lay_out(shape, conv_width, nullptr);
}

// False: nothing is left to do, for a padded request.
bool LinearHeadTask::begin(int request, int k_head) {
  request_ = request;
  k_head_ = k_head;
  first_ = batch_.q_indptr != nullptr ? batch_.q_indptr[request] : request;
  end_ = batch_.q_indptr != nullptr ? batch_.q_indptr[request + 1] : request + 1;
  slot_ = batch_.slots[request];
  initial_ = batch_.initial_slots != nullptr ? batch_.initial_slots[request] : slot_;
  return slot_ >= 0;
}

void LinearHeadTask::zero_rows() {
  for (int64_t t = first_; t < end_; ++t) {
    std::memset(offset(call_.out, call_.out_dtype, t * call_.out_token_stride + int64_t{v_head(0)} * shape_.v_dim), 0,
                shape_.heads_per_k() * shape_.v_dim * size_of(call_.out_dtype));
  }
}

void LinearHeadTask::advance(int request, int k_head) {
  if (!begin(request, k_head)) return zero_rows();
  const bool checkpoints = batch_.checkpoint_indptr != nullptr &&
                           batch_.checkpoint_indptr[request] < batch_.checkpoint_indptr[request + 1];
  const auto tokens = static_cast<int>(std::min<int64_t>(end_ - first_, kLinearAttnChunkTokens + 1));
  if (call_.conv != nullptr) load_windows();
  if (tokens == 0) return carry();
  if (tokens > kStepTokens || checkpoints) return by_chunks();
  by_steps({.first = first_, .count = tokens}, true);
  if (call_.conv != nullptr) store_windows(slot_);
}

// No token: the state goes from where it was to where it is to be.
void LinearHeadTask::carry() {
  if (initial_ == slot_) return;
  const int64_t bytes = int64_t{shape_.v_dim} * shape_.k_dim * size_of(call_.state.dtype);
  for (int i = 0; i < shape_.heads_per_k(); ++i) {
    void* to = offset(call_.state.data, call_.state.dtype, state_at(slot_, i));
    if (initial_ < 0) {
      std::memset(to, 0, bytes);
    } else {
      std::memcpy(to, offset(call_.state.data, call_.state.dtype, state_at(initial_, i)), bytes);
    }
  }
  if (call_.conv != nullptr) store_windows(slot_);
}

void LinearHeadTask::by_steps(const Tokens& tokens, bool outputs) {
  load_qk(tokens);
  for (int t = 0; t < tokens.count; ++t) {
    s_.kq[t] = kernels_.dot(s_.k + t * s_.k_stride, s_.q + t * s_.k_stride, shape_.k_dim);
  }
  for (int i = 0; i < shape_.heads_per_k(); ++i) {
    load_v(tokens, i);
    load_gates(tokens, i);
    for (int t = 0; is_kda() && t < tokens.count; ++t) {
      const int64_t row = int64_t{t} * s_.k_stride;
      kernels_.multiply(s_.k + row, s_.decay + row, shape_.k_dim, s_.decayed_k + row);
      kernels_.multiply(s_.q + row, s_.decay + row, shape_.k_dim, s_.decayed_q + row);
    }
    const LinearAttnState& state = call_.state;
    kernels_.step({.state_in = initial_ >= 0 ? offset(state.data, state.dtype, state_at(initial_, i)) : nullptr,
                   .state_out = offset(state.data, state.dtype, state_at(slot_, i)),
                   .type = type_of(state.dtype),
                   .tokens = tokens.count,
                   .k_dim = shape_.k_dim,
                   .v_dim = shape_.v_dim,
                   .decay = s_.decay,
                   .per_channel = is_kda(),
                   .beta = s_.beta,
                   .k = s_.k,
                   .q = s_.q,
                   .stride = s_.k_stride,
                   .decayed_k = s_.decayed_k,
                   .decayed_q = s_.decayed_q,
                   .kq = s_.kq,
                   .v = s_.v,
                   .v_stride = s_.v_stride,
                   .out = s_.o});
    if (outputs) store_outputs(tokens, i);
  }
}

void LinearHeadTask::by_chunks() {
  for (int i = 0; i < shape_.heads_per_k(); ++i) load_state(i);
  const auto store = [this](int slot) {
    for (int i = 0; i < shape_.heads_per_k(); ++i) store_state(i, slot);
    if (call_.conv != nullptr) store_windows(slot);
  };
  int next = batch_.checkpoint_indptr != nullptr ? batch_.checkpoint_indptr[request_] : 0;
  const int last = batch_.checkpoint_indptr != nullptr ? batch_.checkpoint_indptr[request_ + 1] : 0;
  for (int64_t at = first_; at < end_;) {
    int64_t stop = std::min<int64_t>(end_, at + kLinearAttnChunkTokens);
    if (next < last) stop = std::min(stop, first_ + batch_.checkpoint_tokens[next]);
    chunk({.first = at, .count = static_cast<int>(stop - at)});
    at = stop;
    if (next < last && at - first_ == batch_.checkpoint_tokens[next]) store(batch_.checkpoint_slots[next++]);
  }
  store(slot_);
}

void LinearHeadTask::verify(int request, int k_head) {
  if (!begin(request, k_head)) return zero_rows();
  if (first_ == end_) return;
  if (call_.conv != nullptr) load_windows();
  for (int i = 0; i < shape_.heads_per_k(); ++i) load_state(i);
  chunk({.first = first_,
         .parents = batch_.parents != nullptr ? batch_.parents + first_ : nullptr,
         .count = static_cast<int>(end_ - first_),
         .carries = false});
}

void LinearHeadTask::commit(int request, int k_head) {
  if (!begin(request, k_head)) return;
  if (call_.conv != nullptr) load_windows();
  int32_t path[kLinearAttnMaxVerifyNodes];
  int depth = 0;
  for (int node = batch_.accepted[request]; node >= 0;
       node = batch_.parents != nullptr ? batch_.parents[first_ + node] : node - 1) {
    path[depth++] = node;
  }
  if (depth == 0) return carry();
  std::reverse(path, path + depth);
  by_steps({.first = first_, .picked = path, .count = depth}, false);
  if (call_.conv != nullptr) store_windows(slot_);
}

// The chunk form (Yang et al. 2024). With decays d_ij since token j (at most 1) and u_j the change that token j makes:
//   u_i = beta_i (v_i - d_i0 S k_i - sum_{j before i} d_ij (k_i . k_j) u_j),
//   o_i = d_i0 S q_i + sum_{j to i} d_ij (q_i . k_j) u_j,
//   S <- d_n0 S + sum_j d_nj u_j k_j^T.
// No inverse decay appears anywhere. "Before" means along parents, so that a draft tree is a chunk, too.
void LinearHeadTask::chunk(const Tokens& tokens) {
  const int rows = padded(tokens.count, 4), pairs = padded(tokens.count, kBlock);
  const int64_t pair = LinearHeadScratch::kPairStride;
  load_qk(tokens);
  if (!is_kda()) {
    kernels_.transpose({s_.k, s_.k_stride, pairs, shape_.k_dim}, s_.keys_t, pair);
    LinearGemm scores{.a = s_.k, .a_row = s_.k_stride, .a_depth = 1, .b = s_.keys_t, .b_row = pair, .c = s_.kk,
                      .c_row = pair, .rows = rows, .cols = pairs, .depth = shape_.k_dim, .keep_c = false,
                      .scale_c = nullptr, .lower_a = false, .lower_c = true};
    kernels_.gemm(scores);
    scores.a = s_.q;
    scores.c = s_.qk;
    kernels_.gemm(scores);
  }
  for (int i = 0; i < shape_.heads_per_k(); ++i) {
    load_v(tokens, i);
    load_gates(tokens, i);
    is_kda() ? channel_terms(tokens) : scalar_terms(tokens);
    float* state = s_.state_t + int64_t{i} * shape_.k_dim * s_.v_stride;
    LinearGemm with_state{.a = is_kda() ? s_.decayed_k : s_.k,
                          .a_row = s_.k_stride,
                          .a_depth = 1,
                          .b = state,
                          .b_row = s_.v_stride,
                          .c = s_.u,
                          .c_row = s_.v_stride,
                          .rows = rows,
                          .cols = shape_.v_dim,
                          .depth = shape_.k_dim,
                          .keep_c = false,
                          .scale_c = nullptr,
                          .lower_a = false,
                          .lower_c = false};
    kernels_.gemm(with_state);
    with_state.a = is_kda() ? s_.decayed_q : s_.q;
    with_state.c = s_.o;
    kernels_.gemm(with_state);
    // KDA's keys and queries have their decay already.
    const float* since_start = is_kda() ? nullptr : s_.since_start;
    const LinearMatrix u = {s_.u, s_.v_stride, rows, shape_.v_dim};
    kernels_.remainder(s_.v, s_.beta, since_start, u);
    kernels_.solve(s_.minus_a, pair, u);
    kernels_.gemm({.a = s_.p, .a_row = pair, .a_depth = 1, .b = s_.u, .b_row = s_.v_stride, .c = s_.o,
                   .c_row = s_.v_stride, .rows = rows, .cols = shape_.v_dim, .depth = rows, .keep_c = true,
                   .scale_c = since_start, .lower_a = true, .lower_c = false});
    if (tokens.carries) {
      for (int t = 0; !is_kda() && t < tokens.count; ++t) {
        kernels_.scale(s_.u + t * s_.v_stride, s_.weights[(tokens.count - 1) * pair + t], shape_.v_dim,
                       s_.u + t * s_.v_stride);
      }
      kernels_.gemm({.a = s_.keys_t, .a_row = pair, .a_depth = 1, .b = s_.u, .b_row = s_.v_stride, .c = state,
                     .c_row = s_.v_stride, .rows = shape_.k_dim, .cols = shape_.v_dim, .depth = tokens.count,
                     .keep_c = true, .scale_c = s_.end_decay, .lower_a = false, .lower_c = false});
    }
    store_outputs(tokens, i);
  }
}

void LinearHeadTask::scalar_terms(const Tokens& tokens) {
  kernels_.scalar_pairs({.kk = s_.kk, .qk = s_.qk, .decay = s_.decay, .beta = s_.beta, .parents = tokens.parents,
                         .tokens = tokens.count, .rows = padded(tokens.count, 4), .weights = s_.weights,
                         .minus_a = s_.minus_a, .p = s_.p, .stride = LinearHeadScratch::kPairStride,
                         .since_start = s_.since_start});
  std::fill_n(s_.end_decay, shape_.k_dim, s_.since_start[tokens.count - 1]);
}

// KDA: decays differ by channel, so that pairs of tokens need sums of their own. Between blocks of 16 both sides
// are decayed to the border between them; within a block every pair is summed directly.
void LinearHeadTask::channel_terms(const Tokens& tokens) {
  const int rows = padded(tokens.count, 4), pairs = padded(tokens.count, kBlock);
  for (int i = 0; i < rows; ++i) {
    std::fill_n(s_.minus_a + i * LinearHeadScratch::kPairStride, pairs, 0.0f);
    std::fill_n(s_.p + i * LinearHeadScratch::kPairStride, pairs, 0.0f);
  }
  for (int i = tokens.count; i < rows; ++i) {
    std::fill_n(s_.decayed_k + i * s_.k_stride, shape_.k_dim, 0.0f);
    std::fill_n(s_.decayed_q + i * s_.k_stride, shape_.k_dim, 0.0f);
  }
  if (tokens.parents != nullptr) return tree_terms(tokens);
  std::fill_n(s_.end_decay, shape_.k_dim, 1.0f);
  for (int first = 0; first < tokens.count; first += kBlock) {
    channel_block(first, std::min(first + kBlock, tokens.count));
  }
}

void LinearHeadTask::channel_block(int first, int end) {
  const int dim = shape_.k_dim;
  const int64_t stride = s_.k_stride, pair = LinearHeadScratch::kPairStride;
  kernels_.channel_pairs({.k = s_.k, .q = s_.q, .decay = s_.decay, .stride = stride, .beta = s_.beta,
                          .parents = nullptr, .first = first, .end = end, .k_dim = dim, .minus_a = s_.minus_a,
                          .p = s_.p, .pair_stride = pair});
  float* prefix = s_.reach;  // product of the block's decays so far
  std::fill_n(prefix, dim, 1.0f);
  for (int i = first; i < end; ++i) {
    float* local_k = s_.local_k + (i - first) * stride;
    float* local_q = s_.local_q + (i - first) * stride;
    kernels_.multiply(prefix, s_.decay + i * stride, dim, prefix);
    kernels_.multiply(s_.k + i * stride, prefix, dim, local_k);
    kernels_.multiply(s_.q + i * stride, prefix, dim, local_q);
    kernels_.multiply(local_k, s_.end_decay, dim, s_.decayed_k + i * stride);
    kernels_.multiply(local_q, s_.end_decay, dim, s_.decayed_q + i * stride);
  }
  for (int i = end - first; i < padded(end - first, 4); ++i) {
    std::fill_n(s_.local_k + i * stride, dim, 0.0f);
    std::fill_n(s_.local_q + i * stride, dim, 0.0f);
  }
  if (first > 0) {
    LinearGemm before{.a = s_.local_k, .a_row = stride, .a_depth = 1, .b = s_.keys_t, .b_row = pair,
                      .c = s_.minus_a + first * pair, .c_row = pair, .rows = padded(end - first, 4), .cols = first,
                      .depth = dim, .keep_c = false, .scale_c = nullptr, .lower_a = false, .lower_c = false};
    kernels_.gemm(before);
    for (int i = first; i < end; ++i) {
      kernels_.scale(s_.minus_a + i * pair, -s_.beta[i], first, s_.minus_a + i * pair);
    }
    before.a = s_.local_q;
    before.c = s_.p + first * pair;
    kernels_.gemm(before);
    for (int c = 0; c < dim; ++c) kernels_.scale(s_.keys_t + c * pair, prefix[c], first, s_.keys_t + c * pair);
  }
  kernels_.multiply(s_.end_decay, prefix, dim, s_.end_decay);
  // The block's own keys, decayed to its end.
  std::fill_n(prefix, dim, 1.0f);
  for (int i = end - 1; i >= first; --i) {
    kernels_.multiply(s_.k + i * stride, prefix, dim, s_.local_k + (i - first) * stride);
    kernels_.multiply(prefix, s_.decay + i * stride, dim, prefix);
  }
  for (int i = end - first; i < kBlock; ++i) std::fill_n(s_.local_k + i * stride, dim, 0.0f);
  kernels_.transpose({s_.local_k, stride, kBlock, dim}, s_.keys_t + first, pair);
}

void LinearHeadTask::tree_terms(const Tokens& tokens) {
  const int64_t stride = s_.k_stride;
  kernels_.channel_pairs({.k = s_.k, .q = s_.q, .decay = s_.decay, .stride = stride, .beta = s_.beta,
                          .parents = tokens.parents, .first = 0, .end = tokens.count, .k_dim = shape_.k_dim,
                          .minus_a = s_.minus_a, .p = s_.p, .pair_stride = LinearHeadScratch::kPairStride});
  for (int i = 0; i < tokens.count; ++i) {
    float* reach = s_.reach + i * stride;
    if (tokens.parents[i] < 0) {
      std::copy_n(s_.decay + i * stride, shape_.k_dim, reach);
    } else {
      kernels_.multiply(s_.reach + tokens.parents[i] * stride, s_.decay + i * stride, shape_.k_dim, reach);
    }
    kernels_.multiply(s_.k + i * stride, reach, shape_.k_dim, s_.decayed_k + i * stride);
    kernels_.multiply(s_.q + i * stride, reach, shape_.k_dim, s_.decayed_q + i * stride);
  }
}

}  // namespace warpweave
