// A tree's nodes as requests of one query token each, for results whose bits are those of a text: a node's request has
// the prefix and the node's ancestors in their order, as the text would have them, and a page table of its own, of
// pages of one token. All pointers are device pointers. Nothing of CUDA in it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/attention_params.h"

namespace warpweave::cuda {

inline constexpr int kTreeRequestThreads = 256;

struct TreeRequests {
  int32_t* q_indptr = nullptr;    // [nodes + 1] the node's row of Q
  int32_t* kv_lens = nullptr;     // [nodes]
  int32_t* page_table = nullptr;  // [nodes, stride] places of tokens, counted from the pools' first
  int stride = 0;                 // at least the longest request's tokens
  int page_places = 0;            // from a page's first token to that of the next page
};

inline size_t tree_requests_bytes(int nodes, int stride) {
  return sizeof(int32_t) * (2 * static_cast<size_t>(nodes) + 1 + static_cast<size_t>(nodes) * stride);
}
inline TreeRequests tree_requests_of(void* memory, int nodes, int stride) {
  TreeRequests out;
  out.q_indptr = static_cast<int32_t*>(memory);
  out.kv_lens = out.q_indptr + nodes + 1;
  out.page_table = out.kv_lens + nodes;
  out.stride = stride;
  return out;
}

// `p` over these instead; `count` of them.
inline AttentionParams over_tree_requests(AttentionParams p, const TreeRequests& requests, int count) {
  p.q_indptr = requests.q_indptr;
  p.kv_lens = requests.kv_lens;
  p.page_table = requests.page_table;
  p.page_table_stride = requests.stride;
  p.page_size = 1;
  p.page_shift = 0;
  p.page_stride = p.token_stride;
  p.num_requests = p.num_tokens = count;
  p.tree_mask = nullptr;
  p.tree_mask_words = 0;
  p.causal = true;
  p.earlier_kv_settled = false;  // a node's ancestors are this step's
  return p;
}

}  // namespace warpweave::cuda
