// Prompts in the 192/128 form: tokens of the latent cache become K and V of every head in pages of their own, a chunk
// of every request at a time, and what rows find in several chunks is merged. The caller runs the GEMMs between.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/cuda/mla/mla_gather.h"
#include "attention/cuda/mla/mla_requests.h"

namespace warpweave::cuda {

// Fills in the chunk's arrays. Of `p`: kv_lens, q_indptr, num_requests.
cudaError_t launch_mla_chunk(const MlaParams& p, const MlaChunkRule& rule, const MlaChunk& chunk, cudaStream_t stream);

// The rope parts to their places in K of every head: k [rows, heads, head_stride], from `rope` [rows, 64] to columns
// `column` on. 16-bit numbers; strides and column are multiples of 8.
struct MlaRopeColumns {
  const void* rope = nullptr;
  void* k = nullptr;
  int64_t rows = 0;
  int num_heads = 0;
  int head_stride = 0;
  int column = 0;
};
cudaError_t launch_mla_rope_columns(const MlaRopeColumns& call, cudaStream_t stream);

// (out, lse) = (out, lse) and (other, other_lse) together, by row and head; where other_lse is -inf or NaN, nothing.
struct MlaMerge {
  void* out = nullptr;               // [rows, heads, 128]
  float* lse = nullptr;              // [rows, heads] natural log
  const void* other = nullptr;
  const float* other_lse = nullptr;
  int64_t row_heads = 0;             // rows * heads
};
cudaError_t launch_mla_merge(MlaElement element, const MlaMerge& call, cudaStream_t stream);

}  // namespace warpweave::cuda
