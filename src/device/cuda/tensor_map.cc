#include "device/cuda/tensor_map.h"

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

}  // namespace

cudaError_t make_tensor_map(CUtensorMap* map, const void* base, const TensorShape& shape, int box_rows) {
  static const EncodeFn function = find_encode();
  if (function == nullptr) return cudaErrorNotSupported;
  const auto columns = static_cast<cuuint32_t>(shape.dims[0] < 64 ? shape.dims[0] : 64);
  const cuuint32_t box[4] = {columns, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(shape.box_depth), 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUtensorMapSwizzle swizzle = columns == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                     : CU_TENSOR_MAP_SWIZZLE_NONE;
  // The element type only decides what an out-of-bounds zero is: any 16-bit type will do.
  const CUresult result = function(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(base), shape.dims,
                                   shape.strides_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                   shape.promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t make_matrix_map(CUtensorMap* map, const void* matrix, int64_t rows, int64_t cols, int box_rows) {
  const auto columns = static_cast<cuuint64_t>(cols), count = static_cast<cuuint64_t>(rows);
  const cuuint64_t row_bytes = columns * 2, matrix_bytes = row_bytes * count;
  const TensorShape shape = {.dims = {columns, count, 1, 1},
                             .strides_bytes = {row_bytes, matrix_bytes, matrix_bytes},
                             .promotion = CU_TENSOR_MAP_L2_PROMOTION_NONE};
  return make_tensor_map(map, matrix, shape, box_rows);
}

cudaError_t make_stack_map(CUtensorMap* map, const MatrixStack& stack, int box_rows) {
  const auto columns = static_cast<cuuint64_t>(stack.cols), count = static_cast<cuuint64_t>(stack.count);
  const auto stride_bytes = static_cast<cuuint64_t>(stack.stride_bytes);
  const TensorShape shape = {.dims = {columns, static_cast<cuuint64_t>(stack.rows), count, 1},
                             .strides_bytes = {columns * 2, stride_bytes, stride_bytes * count},
                             .promotion = stack.promotion};
  return make_tensor_map(map, stack.first, shape, box_rows);
}

cudaError_t make_blocks_map(CUtensorMap* map, const MatrixStack& stack, int box_rows, int box_blocks) {
  const auto columns = static_cast<cuuint64_t>(stack.cols);
  const auto rows = static_cast<cuuint64_t>(stack.rows), count = static_cast<cuuint64_t>(stack.count);
  const TensorShape shape = {.dims = {64, rows, columns / 64, count},
                             .strides_bytes = {columns * 2, 128, static_cast<cuuint64_t>(stack.stride_bytes)},
                             .promotion = stack.promotion,
                             .box_depth = box_blocks};
  return make_tensor_map(map, stack.first, shape, box_rows);
}

bool has_tensor_copies() {
  static const bool has = current_compute_capability() >= 90;
  return has;
}

}  // namespace warpweave::cuda
