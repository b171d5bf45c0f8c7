// The kernel of tree_requests.h; for its test, too, which runs it on the host.
#pragma once

#include "attention/cuda/page_lookup.cuh"
#include "attention/cuda/tree_requests.h"

namespace warpweave::cuda {

// The last request that begins at `token` or before it.
WW_DEVICE int request_of_token(const AttentionParams& p, int token) {
  int low = 0, high = p.num_requests - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (p.q_indptr[middle] <= token) low = middle; else high = middle - 1;
  }
  return low;
}

// A CTA a node.
__global__ void __launch_bounds__(kTreeRequestThreads)
    tree_requests(const __grid_constant__ AttentionParams p, const TreeRequests out, int first_token, int count) {
  const int thread = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.x), token = first_token + row;
  const int request = request_of_token(p, token);
  const int q_len = p.q_indptr[request + 1] - p.q_indptr[request], kv_len = p.kv_lens[request];
  const int tree_begin = kv_len - q_len;
  const auto place_of = [&](int position) {
    int in_page = 0;
    const int page = page_of_token(p, request, position, in_page);
    return page * out.page_places + in_page;
  };
  int32_t* const table = out.page_table + static_cast<int64_t>(row) * out.stride;
  for (int i = thread; i < tree_begin; i += kTreeRequestThreads) table[i] = place_of(i);
  if (thread == 0) {
    out.q_indptr[row] = token;
    if (row + 1 == count) out.q_indptr[count] = token + 1;
    // A node stands behind its ancestors, so these come in the order that the text would have them in.
    int end = tree_begin;
    for (int word = 0; kv_len > 0 && word * 32 < q_len; ++word) {  // a request without keys has no nodes either
      uint32_t bits = p.tree_mask[static_cast<int64_t>(token) * p.tree_mask_words + word];
      if (q_len - word * 32 < 32) bits &= (1u << (q_len - word * 32)) - 1;  // bits past the request's rows say nothing
      for (; bits != 0; bits &= bits - 1) {
        table[end++] = place_of(tree_begin + word * 32 + __ffs(static_cast<int>(bits)) - 1);
      }
    }
    out.kv_lens[row] = kv_len == 0 ? 0 : end;
  }
}

}  // namespace warpweave::cuda
