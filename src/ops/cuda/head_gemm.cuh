// The mma.sync kernel of head_gemm (latent.h): for head_gemm.cu, and for its test, which runs it on the host.
//
// A CTA has 16 columns of a head's result for up to 64 rows; its four warps share the depth, so that few rows do not wait
// for memory once a step, and add up in their order. Weights and rows come straight from memory, 16 bytes a lane: a lane's
// eight numbers are neighbours, which is another order of the depth than the instruction's own, the same one for weights
// and rows. Weights are asked for ahead of the predecessor's end. Rows are summed in one order, whatever their number.
#pragma once

#include <cstdint>

#include "device/cuda/ptx.h"

namespace warpweave::gpu {

struct HeadGemmArgs {
  const void* weight;            // [heads, out_dim, in_dim], a head's dense
  int64_t weight_head_stride;
  const void* x;
  void* y;
  int64_t x_stride, x_head_stride, y_stride, y_head_stride;
  int rows, in_dim, out_dim;
};

constexpr int kHeadStep = 32;           // of the depth
constexpr int kHeadWarps = 4;
constexpr int kHeadDepthMultiple = kHeadStep * kHeadWarps;
constexpr int kHeadCols = 16;
constexpr int kHeadStepsAhead = 4;      // of a warp's own

// kAhead: steps of a warp whose weights are on their way.
template <class E, int kRowBlocks, int kAhead = kHeadStepsAhead>
class HeadGemm {
 public:
  // [warp][row block][8 columns][number][lane], as the instruction leaves them.
  using Sums = float[kHeadWarps][kRowBlocks][2][4][32];

  // `block`: of the head's (row blocks x column blocks, the latter fastest).
  WW_DEVICE HeadGemm(const HeadGemmArgs& args, int block, int head)
      : args_(args),
        head_(head),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {
    const int column_blocks = args.out_dim / kHeadCols;
    column_ = block % column_blocks * kHeadCols;
    first_row_ = block / column_blocks * 16 * kRowBlocks;
    const auto* all = static_cast<const uint16_t*>(args.weight);
    weight_ = all + head_ * args.weight_head_stride + static_cast<int64_t>(column_ + lane_ / 4) * args.in_dim + depth(0);
  }

  WW_DEVICE void run(Sums& sums) {
    const int steps = args_.in_dim / kHeadDepthMultiple;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load_weights(i, i, steps);
    ptx::grid_dependency_wait();
    for (int step = 0; step < steps; step += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (kRowBlocks == 1 && step + i < steps) load_rows(step + i, rows_[i]);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (kRowBlocks > 1 && step + i < steps) load_rows(step + i, rows_[0]);
        if (step + i < steps) multiply(rows_[kRowBlocks == 1 ? i : 0], i);
        load_weights(step + kAhead + i, i, steps);
      }
    }
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[warp_][m][i / 4][i % 4][lane_] = sums_[m][i / 4][i % 4];
    }
    __syncthreads();
    for (int tile = warp_; tile < 2 * kRowBlocks; tile += kHeadWarps) store(sums, tile / 2, tile % 2);
  }

 private:
  // Where the lane's eight numbers of the warp's step stand.
  WW_DEVICE int depth(int step) const { return (step * kHeadWarps + warp_) * kHeadStep + lane_ % 4 * 8; }

  WW_DEVICE void load_weights(int step, int slot, int steps) {
    if (step >= steps) return;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const auto* from = weight_ + static_cast<int64_t>(n) * 8 * args_.in_dim + step * kHeadDepthMultiple;
      ahead_[slot][n] = *reinterpret_cast<const uint4*>(from);
    }
  }

  // Of rows that are not there: zeros.
  WW_DEVICE uint4 load_row(int row, int step) const {
    if (row >= args_.rows) return uint4{0, 0, 0, 0};
    const auto* from = static_cast<const uint16_t*>(args_.x) + row * args_.x_stride + head_ * args_.x_head_stride;
    return *reinterpret_cast<const uint4*>(from + depth(step));
  }

  using Rows = uint4[kRowBlocks][2];
  WW_DEVICE void load_rows(int step, Rows& rows) const {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
      const int row = first_row_ + m * 16 + lane_ / 4;
      rows[m][0] = load_row(row, step);
      rows[m][1] = load_row(row + 8, step);
    }
  }

  WW_DEVICE void multiply(const Rows& rows, int slot) {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
      const uint4 low = rows[m][0], high = rows[m][1];
      const ptx::u32 first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        E::mma(sums_[m][n], first, ahead_[slot][n].x, ahead_[slot][n].y);
        E::mma(sums_[m][n], second, ahead_[slot][n].z, ahead_[slot][n].w);
      }
    }
  }

  WW_DEVICE void store(const Sums& sums, int m, int n) const {
    float total[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      total[i] = sums[0][m][n][i][lane_];
      for (int warp = 1; warp < kHeadWarps; ++warp) total[i] += sums[warp][m][n][i][lane_];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row_ + m * 16 + half * 8 + lane_ / 4;
      if (row >= args_.rows) continue;
      auto* to = static_cast<uint16_t*>(args_.y) + row * args_.y_stride + head_ * args_.y_head_stride + column_ + n * 8 + lane_ % 4 * 2;
      *reinterpret_cast<ptx::u32*>(to) = E::pack(total[half * 2], total[half * 2 + 1]);
    }
  }

  const HeadGemmArgs& args_;
  const int head_, warp_, lane_;
  int column_, first_row_;
  const uint16_t* weight_;
  uint4 ahead_[kAhead][2];
  Rows rows_[kRowBlocks == 1 ? kAhead : 1];  // of one block, as many steps ahead
  float sums_[kRowBlocks][2][4] = {};
};

// Grid: (blocks of a head; heads).
template <class E, int kRowBlocks>
__global__ void __launch_bounds__(32 * kHeadWarps) head_gemm_kernel(const __grid_constant__ HeadGemmArgs args) {
  __shared__ typename HeadGemm<E, kRowBlocks>::Sums sums;
  ptx::launch_dependents();
  HeadGemm<E, kRowBlocks>(args, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y)).run(sums);
}

}  // namespace warpweave::gpu
