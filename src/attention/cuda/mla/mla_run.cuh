// What the kernels of latent attention know of a request beyond its run (split_run.cuh).
#pragma once

#include "attention/cuda/mla/mla_params.h"
#include "attention/cuda/split_run.cuh"

namespace warpweave::cuda {

using MlaRunState = SplitRunState<kDecodeTileTokens>;
using MlaCursor = SplitCursor<kDecodeTileTokens>;

WW_DEVICE int split_max_q_len(const MlaParams& p) { return p.max_q_len; }
WW_DEVICE int split_page_row(const MlaParams& p, int request) {
  return p.page_rows != nullptr ? __ldg(p.page_rows + request) : request;
}
WW_DEVICE int split_first_token(const MlaParams&, int, int, int) { return 0; }

// Of a request, the tokens that may be read before the kernel's predecessor has ended.
WW_DEVICE int mla_settled_tokens(const MlaParams& p, const SplitSegment& s) {
  return p.earlier_kv_settled ? s.kv_len - s.q_len : 0;
}

template <MlaFormat kFormat>
WW_DEVICE float mla_kv_scale(const MlaParams& p) {
  return kFormat == MlaFormat::e4m3 && p.kv_scale != nullptr ? __ldg(p.kv_scale) : 1.0f;
}

// Where a token stands in the pool. In two steps, so that a page can be asked for before it is needed.
WW_DEVICE int mla_page_index(const MlaParams& p, int token) {
  return p.page_shift >= 0 ? token >> p.page_shift : token / p.page_size;
}
WW_DEVICE int mla_page(const MlaParams& p, int page_row, int token) {
  return __ldg(p.page_table + static_cast<int64_t>(page_row) * p.page_table_stride + mla_page_index(p, token));
}
WW_DEVICE const char* mla_token_of(const MlaParams& p, int page, int token) {
  return static_cast<const char*>(p.kv) + page * p.page_stride_bytes +
         (token - mla_page_index(p, token) * p.page_size) * p.token_stride_bytes;
}
WW_DEVICE const char* mla_token(const MlaParams& p, int page_row, int token) {
  return mla_token_of(p, mla_page(p, page_row, token), token);
}

// What a row of a request sees: tokens below `end`, and of the new tokens, where there is a tree mask, those it names.
struct MlaSight {
  int end = 0;
  int tree_begin = 1 << 30;
  const uint32_t* tree = nullptr;
  int words = 0;  // of it

  WW_DEVICE MlaSight() {}
  WW_DEVICE MlaSight(const MlaParams& p, const SplitSegment& s, int query) {
    end = p.causal && p.tree_mask == nullptr ? s.kv_len - s.q_len + query + 1 : s.kv_len;
    if (p.tree_mask == nullptr) return;
    tree_begin = s.kv_len - s.q_len;
    words = p.tree_mask_words;
    tree = p.tree_mask + static_cast<int64_t>(s.q_begin + query) * words;
  }
  WW_DEVICE bool sees(int token) const {
    if (token >= end) return false;
    const int node = token - tree_begin;
    return node < 0 || (__ldg(tree + node / 32) >> (node % 32) & 1) != 0;
  }
  // Bit i: of token `first` + i.
  WW_DEVICE uint32_t bits(int first) const {
    const int count = end - first;
    const uint32_t seen = count >= 32 ? ~0u : count > 0 ? (1u << count) - 1 : 0u;
    return tree == nullptr ? seen : seen & tree_bits(first - tree_begin);
  }

 private:
  // From node `first` on; what stands before the tree is seen.
  WW_DEVICE uint32_t tree_bits(int first) const {
    if (first <= -32) return ~0u;
    if (first < 0) return word(0) << -first | ((1u << -first) - 1);
    const uint64_t two = static_cast<uint64_t>(word(first / 32 + 1)) << 32 | word(first / 32);
    return static_cast<uint32_t>(two >> first % 32);
  }
  WW_DEVICE uint32_t word(int i) const { return i < words ? __ldg(tree + i) : 0; }
};

}  // namespace warpweave::cuda
