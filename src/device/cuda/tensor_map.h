// Tensor maps: how TMA sees tensors in GPU memory. Made on the host, passed to kernels by value. Boxes are 64 elements
// (128 bytes) wide, in the 128-byte swizzle. Elements are of 16 bits; pairs of one-byte elements count as one.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace warpweave::cuda {

// The innermost dimension, whose elements follow each other, comes first.
struct TensorShape {
  cuuint64_t dims[4] = {};
  cuuint64_t strides_bytes[3] = {};  // of dims 1 to 3
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  int box_depth = 1;  // of dim 2
};
// A box holds `box_rows` of dim 1, `box_depth` of dim 2 and one of dim 3. Tensors of fewer than 64 columns have boxes
// as wide as they are: of 32 columns in the 64-byte swizzle, of less in none.
cudaError_t make_tensor_map(CUtensorMap* map, const void* base, const TensorShape& shape, int box_rows);

// A dense row-major matrix; a box holds 64 columns of `box_rows` rows. What a box has outside of the matrix is zero.
cudaError_t make_matrix_map(CUtensorMap* map, const void* matrix, int64_t rows, int64_t cols, int box_rows);

// `count` such matrices, `stride_bytes` apart; a box holds 64 columns of `box_rows` rows of one.
struct MatrixStack {
  const void* first = nullptr;
  int64_t count = 0;
  int64_t stride_bytes = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;  // for what is read once, from memory
};
cudaError_t make_stack_map(CUtensorMap* map, const MatrixStack& stack, int box_rows);

// The same by blocks of 64 columns, of which `cols` is a multiple: a box holds `box_blocks` neighbouring ones, one
// behind the other. The dims are a block's columns, rows, blocks, matrices.
cudaError_t make_blocks_map(CUtensorMap* map, const MatrixStack& stack, int box_rows, int box_blocks);

// Whether the first device asked about has TMA (sm_90).
bool has_tensor_copies();

}  // namespace warpweave::cuda
