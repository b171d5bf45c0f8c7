#include "attention/batch_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace warpweave {
namespace {

Status check_tree(const ForwardBatch& batch) {
  if (batch.max_q_len > 32ll * batch.tree_mask_words ||
      batch.tree_mask.size() < static_cast<size_t>(batch.num_tokens) * batch.tree_mask_words ||
      batch.positions.size() < static_cast<size_t>(batch.num_tokens)) {
    return Status::invalid_argument(fmt::format(
        "the tree mask has {} words, {} a row, and there are {} positions; {} rows of trees of up to "
        "{} nodes need a bit per node and a position per row", batch.tree_mask.size(),
        batch.tree_mask_words, batch.positions.size(), batch.num_tokens, batch.max_q_len));
  }
  for (int r = 0; r < batch.num_reqs; ++r) {
    for (int i = 0; batch.kv_lens[r] > 0 && i < batch.q_len(r); ++i) {
      const int64_t row = batch.q_indptr[r] + i;
      if (batch.tree_mask[row * batch.tree_mask_words + i / 32] >> i % 32 & 1) continue;
      return Status::invalid_argument(
          fmt::format("row {} of request {} of the batch does not see itself in the tree mask", i, r));
    }
  }
  return {};
}

}  // namespace

Status check_batch(const ForwardBatch& batch) {
  if (batch.page_size < 1) {
    return Status::invalid_argument(
        fmt::format("page_size is {}; it must be at least 1", batch.page_size));
  }
  if (!batch.tree_mask.empty()) WW_RETURN_IF_ERROR(check_tree(batch));
  for (int r = 0; r < batch.num_reqs; ++r) {
    const int q_len = batch.q_len(r), kv_len = batch.kv_lens[r];
    if (q_len < 0 || kv_len < 0 || (batch.causal && kv_len > 0 && q_len > kv_len)) {
      return Status::invalid_argument(fmt::format(
          "request {} of the batch has {} query rows but sees {} tokens; a row sees at least itself",
          r, q_len, kv_len));
    }
    const int64_t pages = (int64_t{kv_len} + batch.page_size - 1) / batch.page_size;
    if (pages > batch.page_table_stride) {
      return Status::invalid_argument(
          fmt::format("request {} of the batch sees {} tokens, {} pages, but its page table has {}",
                      r, kv_len, pages, batch.page_table_stride));
    }
  }
  return {};
}

void clear_empty_requests(const ForwardBatch& batch, const AttentionCall& call) {
  for (int r = 0; r < batch.num_reqs; ++r) {
    if (batch.kv_lens[r] != 0) continue;
    for (int64_t t = batch.q_indptr[r]; t < batch.q_indptr[r + 1]; ++t) {
      std::fill_n(call.out_f32() + t * call.out_token_stride, call.num_q_heads * call.v_head_dim, 0.0f);
      if (call.lse != nullptr) {
        std::fill_n(call.lse + t * call.num_q_heads, call.num_q_heads,
                    -std::numeric_limits<float>::infinity());
      }
    }
  }
}

}  // namespace warpweave
