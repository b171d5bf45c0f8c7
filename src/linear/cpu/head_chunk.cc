// The chunk form of a head task: many tokens, or the nodes of a draft tree, as products of matrices.
#include <algorithm>

#include "linear/cpu/head_parts.h"
#include "linear/cpu/head_task.h"

namespace warpweave {

using namespace linear_head;

namespace {

// Rows of the triangular solve at a time; what earlier ones give to the next is a product.
constexpr int kSolveRows = 32;

}  // namespace

void LinearHeadTask::multiply(const LinearGemm& gemm) const {
  if (kernels_.tiles == nullptr || !kernels_.tiles->gemm(gemm)) kernels_.gemm(gemm);
}

// The chunk form (Yang et al. 2024). With decays d_ij since token j (at most 1) and u_j the change that token j makes:
//   u_i = beta_i (v_i - d_i0 S k_i - sum_{j before i} d_ij (k_i . k_j) u_j),
//   o_i = d_i0 S q_i + sum_{j to i} d_ij (q_i . k_j) u_j,
//   S <- d_n0 S + sum_j d_nj u_j k_j^T.
// No inverse decay appears anywhere. "Before" means along parents, so that a draft tree is a chunk, too.
void LinearHeadTask::chunk(const Tokens& tokens) {
  load_qk(tokens);
  if (!is_kda()) key_products(tokens);
  for (int i = 0; i < shape_.heads_per_k(); ++i) {
    load_v(tokens, i);
    load_gates(tokens, i);
    is_kda() ? channel_terms(tokens) : scalar_terms(tokens);
    float* state = s_.state_t + int64_t{i} * shape_.k_dim * s_.v_stride;
    with_state(tokens, state);
    within_chunk(tokens);
    if (tokens.carries) advance_state(tokens, state);
    store_outputs(tokens, i);
  }
}

// GDN: what all v heads share.
void LinearHeadTask::key_products(const Tokens& tokens) {
  const int pairs = padded(tokens.count, kBlock), heads = shape_.heads_per_k();
  const int64_t pair = LinearHeadScratch::kPairStride;
  kernels_.transpose({s_.k, s_.k_stride, pairs, shape_.k_dim}, s_.keys_t, pair);
  packed_k_ = to_pack(s_.packed_k, 1 + heads);
  packed_q_ = to_pack(s_.packed_q, 1 + heads);
  packed_keys_ = to_pack(s_.packed_keys, heads);
  LinearPacked columns = to_pack(s_.packed_b, 2);
  LinearGemm scores{.a = s_.k,
                    .a_row = s_.k_stride,
                    .a_depth = 1,
                    .b = s_.keys_t,
                    .b_row = pair,
                    .c = s_.kk,
                    .c_row = pair,
                    .rows = padded(tokens.count, 4),
                    .cols = pairs,
                    .depth = shape_.k_dim,
                    .lower_c = true,
                    .parts = state_parts_,
                    .packed_a = &packed_k_,
                    .packed_b = &columns};
  multiply(scores);
  scores.a = s_.q;
  scores.c = s_.qk;
  scores.parts = output_parts_;
  scores.packed_a = &packed_q_;
  multiply(scores);
}

// u = S k, o = S q; KDA's keys and queries have their decay.
void LinearHeadTask::with_state(const Tokens& tokens, const float* state) {
  if (is_kda()) {
    packed_k_ = to_pack(s_.packed_k, 1);
    packed_q_ = to_pack(s_.packed_q, 1);
    packed_keys_ = to_pack(s_.packed_keys, 1);
  }
  LinearPacked columns = to_pack(s_.packed_b, 2);
  LinearGemm product{.a = is_kda() ? s_.decayed_k : s_.k,
                     .a_row = s_.k_stride,
                     .a_depth = 1,
                     .b = state,
                     .b_row = s_.v_stride,
                     .c = s_.u,
                     .c_row = s_.v_stride,
                     .rows = padded(tokens.count, 4),
                     .cols = shape_.v_dim,
                     .depth = shape_.k_dim,
                     .parts = state_parts_,
                     .packed_a = &packed_k_,
                     .packed_b = &columns};
  multiply(product);
  product.a = is_kda() ? s_.decayed_q : s_.q;
  product.c = s_.o;
  product.parts = output_parts_;
  product.packed_a = &packed_q_;
  multiply(product);
}

void LinearHeadTask::within_chunk(const Tokens& tokens) {
  const int rows = padded(tokens.count, 4), dim = shape_.v_dim;
  const int64_t pair = LinearHeadScratch::kPairStride;
  const float* since_start = is_kda() ? nullptr : s_.since_start;
  kernels_.remainder(s_.v, s_.beta, since_start, {s_.u, s_.v_stride, rows, dim});
  LinearGemm product{.a = nullptr,
                     .a_row = pair,
                     .a_depth = 1,
                     .b = s_.u,
                     .b_row = s_.v_stride,
                     .c = nullptr,
                     .c_row = s_.v_stride,
                     .rows = 0,
                     .cols = dim,
                     .depth = 0,
                     .keep_c = true,
                     .parts = state_parts_};
  LinearPacked left{}, columns{};
  product.packed_a = &left;
  product.packed_b = &columns;
  for (int first = 0; first < rows; first += kSolveRows) {
    const LinearMatrix u = {s_.u + first * s_.v_stride, s_.v_stride, std::min(kSolveRows, rows - first), dim};
    const float* const minus_a = s_.minus_a + first * pair;
    if (first > 0) {
      left = to_pack(s_.packed_a, 1);
      columns = to_pack(s_.packed_b, 1);
      product.a = minus_a;
      product.c = u.x;
      product.rows = u.rows;
      product.depth = first;
      multiply(product);
    }
    kernels_.solve(minus_a + first, pair, u);
  }
  left = to_pack(s_.packed_a, 1);
  columns = to_pack(s_.packed_b, 1);
  product.a = s_.p;
  product.c = s_.o;
  product.rows = product.depth = rows;
  product.scale_c = since_start;
  product.lower_a = true;
  product.parts = output_parts_;
  multiply(product);
}

void LinearHeadTask::advance_state(const Tokens& tokens, float* state) {
  const int64_t pair = LinearHeadScratch::kPairStride;
  for (int t = 0; !is_kda() && t < tokens.count; ++t) {
    float* const u = s_.u + t * s_.v_stride;
    kernels_.scale(u, s_.weights[(tokens.count - 1) * pair + t], shape_.v_dim, u);
  }
  LinearPacked columns = to_pack(s_.packed_b, 1);
  multiply({.a = s_.keys_t,
            .a_row = pair,
            .a_depth = 1,
            .b = s_.u,
            .b_row = s_.v_stride,
            .c = state,
            .c_row = s_.v_stride,
            .rows = shape_.k_dim,
            .cols = shape_.v_dim,
            .depth = tokens.count,
            .keep_c = true,
            .scale_c = s_.end_decay,
            .parts = state_parts_,
            .packed_a = &packed_keys_,
            .packed_b = &columns});
}

void LinearHeadTask::scalar_terms(const Tokens& tokens) {
  kernels_.scalar_pairs({.kk = s_.kk,
                         .qk = s_.qk,
                         .decay = s_.decay,
                         .beta = s_.beta,
                         .parents = tokens.parents,
                         .tokens = tokens.count,
                         .rows = padded(tokens.count, 4),
                         .weights = s_.weights,
                         .minus_a = s_.minus_a,
                         .p = s_.p,
                         .stride = LinearHeadScratch::kPairStride,
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
  kernels_.channel_pairs({.k = s_.k,
                          .q = s_.q,
                          .decay = s_.decay,
                          .stride = stride,
                          .beta = s_.beta,
                          .parents = nullptr,
                          .first = first,
                          .end = end,
                          .k_dim = dim,
                          .minus_a = s_.minus_a,
                          .p = s_.p,
                          .pair_stride = pair});
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
  if (first > 0) pairs_with_earlier_blocks(first, end);
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

// Their keys are decayed up to the start of this block, and then on to its end.
void LinearHeadTask::pairs_with_earlier_blocks(int first, int end) {
  const int dim = shape_.k_dim;
  const int64_t stride = s_.k_stride, pair = LinearHeadScratch::kPairStride;
  LinearPacked left = to_pack(s_.packed_a, 1), columns = to_pack(s_.packed_b, 2);
  LinearGemm before{.a = s_.local_k,
                    .a_row = stride,
                    .a_depth = 1,
                    .b = s_.keys_t,
                    .b_row = pair,
                    .c = s_.minus_a + first * pair,
                    .c_row = pair,
                    .rows = padded(end - first, 4),
                    .cols = first,
                    .depth = dim,
                    .parts = state_parts_,
                    .packed_a = &left,
                    .packed_b = &columns};
  multiply(before);
  for (int i = first; i < end; ++i) {
    kernels_.scale(s_.minus_a + i * pair, -s_.beta[i], first, s_.minus_a + i * pair);
  }
  left = to_pack(s_.packed_a, 1);
  before.a = s_.local_q;
  before.c = s_.p + first * pair;
  before.parts = output_parts_;
  multiply(before);
  for (int c = 0; c < dim; ++c) kernels_.scale(s_.keys_t + c * pair, s_.reach[c], first, s_.keys_t + c * pair);
}

void LinearHeadTask::tree_terms(const Tokens& tokens) {
  const int64_t stride = s_.k_stride;
  kernels_.channel_pairs({.k = s_.k,
                          .q = s_.q,
                          .decay = s_.decay,
                          .stride = stride,
                          .beta = s_.beta,
                          .parents = tokens.parents,
                          .first = 0,
                          .end = tokens.count,
                          .k_dim = shape_.k_dim,
                          .minus_a = s_.minus_a,
                          .p = s_.p,
                          .pair_stride = LinearHeadScratch::kPairStride});
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
