// How requests are cut: into slices of their new tokens (mla_slices.h), and into chunks of all their tokens
// (mla_expand.h). Nothing of CUDA in it.
#pragma once

#include "attention/cuda/mla/mla_params.h"

namespace warpweave::cuda {

// Takes MlaParams::q_indptr, kv_lens and page_rows of the slices; device memory for count() of each, and one more of
// q_indptr.
struct MlaSlices {
  int slice_tokens = 1;      // query tokens of a slice, at most
  int32_t* q_indptr = nullptr;
  int32_t* kv_lens = nullptr;
  int32_t* page_rows = nullptr;

  // Some are empty.
  static constexpr int count(int tokens, int requests, int slice_tokens) { return tokens / slice_tokens + requests; }
};

inline constexpr int kExpandedPageTokens = 128;

// A chunk's tokens of every request; device memory. The requests' tokens begin with a page each.
struct MlaChunk {
  int32_t* begins = nullptr;       // [requests] the first of them
  int32_t* kv_lens = nullptr;      // [requests] how many, perhaps none
  int32_t* first_rows = nullptr;   // [requests + 1] where they stand
  int32_t* page_table = nullptr;   // [requests, page_table_stride]
  int page_table_stride = 0;
};

// Which tokens: the new ones, or up to `max_tokens` of the prefix from `begin` on; none of requests with fewer than
// `min_q_len` new ones.
struct MlaChunkRule {
  bool fresh = true;
  int begin = 0;
  int max_tokens = 0;
  int min_q_len = 2;
};

}  // namespace warpweave::cuda
