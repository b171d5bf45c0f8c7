#include "attention/cuda/tensor_map.h"

#include "device/cuda/compute_capability.h"

namespace warpweave::cuda {
namespace {

using EncodeFn = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                              const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                              CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                              CUtensorMapFloatOOBfill);

// Through the runtime, so that nothing links to the driver.
EncodeFn find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                       &found) != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<EncodeFn>(function);
}

cudaError_t encode(CUtensorMap* map, const void* base, const cuuint64_t (&dims)[4],
                   const cuuint64_t (&strides_bytes)[3], int box_tokens,
                   CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
  static const EncodeFn function = find_encode();
  if (function == nullptr) return cudaErrorNotSupported;
  const cuuint32_t columns = static_cast<cuuint32_t>(dims[0] < 64 ? dims[0] : 64);
  const cuuint32_t box[4] = {columns, static_cast<cuuint32_t>(box_tokens), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUtensorMapSwizzle swizzle = columns == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                     : CU_TENSOR_MAP_SWIZZLE_NONE;
  // The element type only decides what an out-of-bounds zero is: any 16-bit type will do.
  const CUresult result = function(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(base), dims,
                                   strides_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t make_pool_map(CUtensorMap* map, const void* pool, const AttentionParams& p, int head_dim,
                          int box_tokens) {
  // The number of pages is not known here; page tables name only pages that exist.
  constexpr cuuint64_t kPages = 1ull << 28;
  const cuuint64_t dims[4] = {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(p.page_size),
                              static_cast<cuuint64_t>(p.num_kv_heads), kPages};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(p.token_stride) * 2,
                                 static_cast<cuuint64_t>(p.head_stride) * 2,
                                 static_cast<cuuint64_t>(p.page_stride) * 2};
  return encode(map, pool, dims, strides, box_tokens);
}

cudaError_t make_byte_pool_map(CUtensorMap* map, const void* pool, const AttentionParams& p, int head_dim,
                               int box_tokens) {
  AttentionParams pairs = p;
  pairs.page_stride /= 2;
  pairs.token_stride /= 2;
  pairs.head_stride /= 2;
  return make_pool_map(map, pool, pairs, head_dim / 2, box_tokens);
}

cudaError_t make_rows_map(CUtensorMap* map, const void* rows, int64_t token_stride, const AttentionParams& p,
                          int head_dim, int box_tokens) {
  const cuuint64_t dims[4] = {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(p.num_tokens),
                              static_cast<cuuint64_t>(p.num_q_heads), 1};
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(token_stride) * 2;
  const cuuint64_t strides[3] = {row_bytes, static_cast<cuuint64_t>(head_dim) * 2, row_bytes * dims[1]};
  return encode(map, rows, dims, strides, box_tokens);
}

cudaError_t make_matrix_map(CUtensorMap* map, const void* matrix, int64_t rows, int64_t cols, int box_rows) {
  const cuuint64_t dims[4] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows), 1, 1};
  const cuuint64_t row_bytes = dims[0] * 2, matrix_bytes = row_bytes * dims[1];
  return encode(map, matrix, dims, {row_bytes, matrix_bytes, matrix_bytes}, box_rows, CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

cudaError_t make_stack_map(CUtensorMap* map, const MatrixStack& stack, int box_rows) {
  const cuuint64_t dims[4] = {static_cast<cuuint64_t>(stack.cols), static_cast<cuuint64_t>(stack.rows),
                              static_cast<cuuint64_t>(stack.count), 1};
  const auto stride_bytes = static_cast<cuuint64_t>(stack.stride_bytes);
  return encode(map, stack.first, dims, {dims[0] * 2, stride_bytes, stride_bytes * dims[2]}, box_rows,
                CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

bool has_tensor_copies() {
  static const bool has = current_compute_capability() >= 90;
  return has;
}

int box_tokens_of(int page_size, int most) {
  int tokens = 1;
  while (tokens < most && page_size % (2 * tokens) == 0) tokens *= 2;
  return tokens;
}

}  // namespace warpweave::cuda
