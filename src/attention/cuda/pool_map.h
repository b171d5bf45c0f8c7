// Tensor maps (device/cuda/tensor_map.h) of Q and of the K/V pools.
#pragma once

#include "attention/cuda/attention_params.h"
#include "device/cuda/tensor_map.h"

namespace warpweave::cuda {

// A K or V pool as [page][kv head][token in page][dim]; a box holds `box_tokens` tokens of one page
// and head. A page index of -1 gives zeros.
cudaError_t make_pool_map(CUtensorMap* map, const void* pool, const AttentionParams& p, int head_dim,
                          int box_tokens);

// The same of one-byte elements, head dim 64 (64-byte boxes in the 64-byte swizzle), 128, or 16 (not swizzled).
cudaError_t make_byte_pool_map(CUtensorMap* map, const void* pool, const AttentionParams& p, int head_dim,
                               int box_tokens);

struct TokenRows {
  const void* data;
  int64_t token_stride;  // in elements
};

// Q (or an output of its shape) as [1][q head][token][dim]; a box holds `box_tokens` tokens of one head.
cudaError_t make_rows_map(CUtensorMap* map, TokenRows rows, const AttentionParams& p, int head_dim, int box_tokens);

// The most tokens, a power of two up to `most`, that a box can hold for this page size.
int box_tokens_of(int page_size, int most);

}  // namespace warpweave::cuda
