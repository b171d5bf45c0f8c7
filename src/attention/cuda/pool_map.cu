#include "attention/cuda/pool_map.h"

namespace warpweave::cuda {

cudaError_t make_pool_map(CUtensorMap* map, const void* pool, const AttentionParams& p, int head_dim,
                          int box_tokens) {
  // The number of pages is not known here; page tables name only pages that exist.
  constexpr cuuint64_t kPages = 1ull << 28;
  const TensorShape shape = {.dims = {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(p.page_size),
                                      static_cast<cuuint64_t>(p.num_kv_heads), kPages},
                             .strides_bytes = {static_cast<cuuint64_t>(p.token_stride) * 2,
                                               static_cast<cuuint64_t>(p.head_stride) * 2,
                                               static_cast<cuuint64_t>(p.page_stride) * 2}};
  return make_tensor_map(map, pool, shape, box_tokens);
}

cudaError_t make_byte_pool_map(CUtensorMap* map, const void* pool, const AttentionParams& p, int head_dim,
                               int box_tokens) {
  AttentionParams pairs = p;
  pairs.page_stride /= 2;
  pairs.token_stride /= 2;
  pairs.head_stride /= 2;
  return make_pool_map(map, pool, pairs, head_dim / 2, box_tokens);
}

cudaError_t make_rows_map(CUtensorMap* map, TokenRows rows, const AttentionParams& p, int head_dim, int box_tokens) {
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(rows.token_stride) * 2;
  const auto num_tokens = static_cast<cuuint64_t>(p.num_tokens);
  const TensorShape shape = {
      .dims = {static_cast<cuuint64_t>(head_dim), num_tokens, static_cast<cuuint64_t>(p.num_q_heads), 1},
      .strides_bytes = {row_bytes, static_cast<cuuint64_t>(head_dim) * 2, row_bytes * num_tokens}};
  return make_tensor_map(map, rows.data, shape, box_tokens);
}

int box_tokens_of(int page_size, int most) {
  int tokens = 1;
  while (tokens < most && page_size % (2 * tokens) == 0) tokens *= 2;
  return tokens;
}

}  // namespace warpweave::cuda
