// (I + A)^-1 for a strictly lower triangular A of 64 x 64, by four warps: diagonal blocks of 16 by substitution in f32, then
// blocks below them from 16 to 32 to 64 as GEMMs in half precision: [P 0; A Q]^-1 = [P' 0; -Q' A P', Q'].
#pragma once

#include "linear/cuda/half_blocks.cuh"

namespace warpweave::linear {

struct InverseScratch {
  static constexpr int kStride = 72, kZStride = 40, kDiagonalStride = 20;  // rows of ldmatrix in different banks
  alignas(16) unsigned short a[64][kStride], t[64][kStride], z[32][kZStride];
  alignas(16) float diagonal[4][16][kDiagonalStride];
};

// kOfBlock: those are all of their block's; else its first ones.
template <bool kOfBlock>
class BlockInverse : HalfBlocks {
 public:
  WW_DEVICE explicit BlockInverse(InverseScratch& scratch) : HalfBlocks(threadIdx.x / 32, threadIdx.x % 32), s_(scratch) {}

  // Two neighbouring elements of A, as accumulators have them: tile n of eight columns, row lane / 4 + 8 i of this warp's 16.
  // Blocks above the diagonal are not put.
  WW_DEVICE void put_pair(int n, int i, float low, float high) {
    const int row = row_ + 8 * i;
    if (n / 2 == warp_) {
      *reinterpret_cast<float2*>(&s_.diagonal[warp_][row][8 * (n % 2) + column_]) = make_float2(low, high);
    } else {
      *reinterpret_cast<ptx::u32*>(&s_.a[16 * warp_ + row][8 * n + column_]) = Half::pack(low, high);
    }
  }

  // The inverse is left in scratch.t, but for its blocks above the diagonal. All 128 threads call it together, when they have
  // put their pairs; they may read scratch after it.
  WW_DEVICE void run() {
    __syncwarp();
    invert_diagonal();
    meet();
    if (warp_ % 2 == 1) merge_sixteens();
    meet();
    merge_thirty_twos();
    meet();
  }

 private:
  static WW_DEVICE void meet() {
    if constexpr (kOfBlock) __syncthreads();
    else ptx::named_barrier_sync(1, 128);
  }
  // A lane a column.
  WW_DEVICE void invert_diagonal() {
    const int column = lane_ % 16;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float even = i == column ? 1.0f : 0.0f, odd = 0;
#pragma unroll
      for (int j = 0; j < i; j += 4) {
        const float4 a = *reinterpret_cast<const float4*>(&s_.diagonal[warp_][i][j]);
        even -= a.x * x[j];
        if (j + 1 < i) odd -= a.y * x[j + 1];
        if (j + 2 < i) even -= a.z * x[j + 2];
        if (j + 3 < i) odd -= a.w * x[j + 3];
      }
      x[i] = even + odd;
    }
    if (lane_ >= 16) return;
#pragma unroll
    for (int i = 0; i < 16; ++i) s_.t[16 * warp_ + i][16 * warp_ + column] = static_cast<unsigned short>(Half::pack(x[i], 0));
  }

  template <int N, int kOther>
  WW_DEVICE void put(unsigned short (&to)[N][kOther], int row, int column, const float (&d)[2][4], float sign) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        *reinterpret_cast<ptx::u32*>(&to[row + row_ + 8 * i][column + 8 * n + column_]) =
            Half::pack(sign * d[n][2 * i], sign * d[n][2 * i + 1]);
      }
    }
  }

  WW_DEVICE void merge_sixteens() {
    const int row = 16 * warp_, column = row - 16;
    ptx::u32 a[4], b[4];
    float y[2][4] = {}, result[2][4] = {};
    left(a, s_.a, row, column);
    right(b, s_.t, column, column);
    multiply(y, a, b);
    right_of(b, y);
    left(a, s_.t, row, row);
    multiply(result, a, b);
    put(s_.t, row, column, result, -1);
  }

  WW_DEVICE void merge_thirty_twos() {
    const int i = warp_ / 2, j = warp_ % 2;  // the block of 16 that is this warp's
    ptx::u32 a[4], b[4];
    float z[2][4] = {}, result[2][4] = {};
    for (int block = j; block < 2; ++block) {
      left(a, s_.a, 32 + 16 * i, 16 * block);
      right(b, s_.t, 16 * block, 16 * j);
      multiply(z, a, b);
    }
    put(s_.z, 16 * i, 16 * j, z, 1);
    meet();
    for (int block = 0; block <= i; ++block) {
      left(a, s_.t, 32 + 16 * i, 32 + 16 * block);
      right(b, s_.z, 16 * block, 16 * j);
      multiply(result, a, b);
    }
    put(s_.t, 32 + 16 * i, 16 * j, result, -1);
  }

  InverseScratch& s_;
};

}  // namespace warpweave::linear
