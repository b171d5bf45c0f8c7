// Blocks of 16 x 16 in half precision, of matrices in shared memory, as a warp multiplies them: mma.sync, sums in f32.
#pragma once

#include "device/cuda/ptx.h"

namespace warpweave::linear {

class HalfBlocks {
 protected:
  using Half = ptx::F16;

  // warp: of those that work together, from 0.
  WW_DEVICE HalfBlocks(int warp, int lane) : warp_(warp), lane_(lane), row_(lane / 4), column_(lane % 4 * 2) {}

  // The block whose first element is from[row][column], as a left and as a right operand.
  template <int N, int kStride>
  WW_DEVICE void left(ptx::u32 (&r)[4], const unsigned short (&from)[N][kStride], int row, int column) const {
    ptx::ldmatrix_x4(r, ptx::smem_address(&from[row + lane_ % 16][column + lane_ / 16 * 8]));
  }
  template <int N, int kStride>
  WW_DEVICE void right(ptx::u32 (&r)[4], const unsigned short (&from)[N][kStride], int row, int column) const {
    ptx::ldmatrix_x4_trans(r, ptx::smem_address(&from[row + lane_ % 16][column + lane_ / 16 * 8]));
  }
  // d += a b
  static WW_DEVICE void multiply(float (&d)[2][4], const ptx::u32 (&a)[4], const ptx::u32 (&b)[4]) {
    Half::mma(d[0], a, b[0], b[1]);
    Half::mma(d[1], a, b[2], b[3]);
  }
  // A result, rounded, as a right operand.
  static WW_DEVICE void right_of(ptx::u32 (&b)[4], const float (&y)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      b[2 * n] = ptx::movmatrix_trans(Half::pack(y[n][0], y[n][1]));
      b[2 * n + 1] = ptx::movmatrix_trans(Half::pack(y[n][2], y[n][3]));
    }
  }

  const int warp_, lane_, row_, column_;  // row_ and column_: of the first element that this lane has of a result
};

}  // namespace warpweave::linear
