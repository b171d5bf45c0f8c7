// Tensor maps: how TMA sees Q, the K/V pools and weights. Made on the host, passed to kernels by
// value. Boxes are 64 elements (128 bytes) wide, in the 128-byte swizzle.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "attention/cuda/attention_params.h"

namespace warpweave::cuda {

// A K or V pool as [page][kv head][token in page][dim]; a box holds `box_tokens` tokens of one page
// and head. A page index of -1 gives zeros.
cudaError_t make_pool_map(CUtensorMap* map, const void* pool, const AttentionParams& p, int head_dim,
                          int box_tokens);

// The same of one-byte elements, head dim 64 (64-byte boxes in the 64-byte swizzle), 128, or 16 (not swizzled).
cudaError_t make_byte_pool_map(CUtensorMap* map, const void* pool, const AttentionParams& p, int head_dim,
                               int box_tokens);

// Q (or an output of its shape) as [1][q head][token][dim]; a box holds `box_tokens` tokens of one head.
cudaError_t make_rows_map(CUtensorMap* map, const void* rows, int64_t token_stride, const AttentionParams& p,
                          int head_dim, int box_tokens);

// A dense row-major matrix of 16-bit elements; a box holds 64 columns of `box_rows` rows. What a box has outside of
// the matrix is zero.
cudaError_t make_matrix_map(CUtensorMap* map, const void* matrix, int64_t rows, int64_t cols, int box_rows);

// `count` such matrices of 16-bit elements, `stride_bytes` apart; a box holds 64 columns of `box_rows` rows of one.
// Pairs of one-byte elements count as one.
struct MatrixStack {
  const void* first = nullptr;
  int64_t count = 0;
  int64_t stride_bytes = 0;
  int64_t rows = 0;
  int64_t cols = 0;
};
cudaError_t make_stack_map(CUtensorMap* map, const MatrixStack& stack, int box_rows);

// Whether the first device asked about has TMA (sm_90).
bool has_tensor_copies();

// The most tokens, a power of two up to `most`, that a box can hold for this page size.
int box_tokens_of(int page_size, int most);

}  // namespace warpweave::cuda
