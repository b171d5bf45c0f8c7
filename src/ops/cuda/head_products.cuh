// The mma.sync kernel of head_products (latent.h): for head_products.cu, and for its test, which runs it on the host.
//
// A warp has 16 columns of a head's result for up to 64 rows, and reads weights and rows straight from memory, 16 bytes a
// lane: a lane's eight numbers are neighbours, which is another order of the depth than the instruction's own, the same
// one for weights and rows. Weights are asked for ahead of the predecessor's end and four steps ahead of their use. Rows
// are summed over the depth in one order, whatever their number.
#pragma once

#include <cstdint>

#include "attention/cuda/ptx.h"

namespace warpweave::gpu {

struct HeadProductsArgs {
  const void* weight;            // [heads, out_dim, in_dim], a head's dense
  int64_t weight_head_stride;
  const void* x;
  void* y;
  int64_t x_stride, x_head_stride, y_stride, y_head_stride;
  int rows, in_dim, out_dim;
};

constexpr int kHeadStep = 32;           // of the depth
constexpr int kHeadStepsAhead = 4;
constexpr int kHeadDepthMultiple = kHeadStep * kHeadStepsAhead;
constexpr int kHeadWarpCols = 16;

template <class E, int kRowBlocks, int kWarps>
class HeadProducts {
 public:
  WW_DEVICE explicit HeadProducts(const HeadProductsArgs& args)
      : args_(args),
        head_(static_cast<int>(blockIdx.y)),
        lane_(static_cast<int>(threadIdx.x) % 32) {
    const int column_blocks = args.out_dim / (kHeadWarpCols * kWarps);
    column_ = (static_cast<int>(blockIdx.x) % column_blocks * kWarps + static_cast<int>(threadIdx.x) / 32) * kHeadWarpCols;
    first_row_ = static_cast<int>(blockIdx.x) / column_blocks * 16 * kRowBlocks;
    const auto* all = static_cast<const uint16_t*>(args.weight);
    weight_ = all + head_ * args.weight_head_stride + static_cast<int64_t>(column_ + lane_ / 4) * args.in_dim + lane_ % 4 * 8;
  }

  WW_DEVICE void run() {
#pragma unroll
    for (int i = 0; i < kHeadStepsAhead; ++i) load_weights(i, i);
    ptx::grid_dependency_wait();
    for (int step = 0; step < args_.in_dim / kHeadStep; step += kHeadStepsAhead) {
#pragma unroll
      for (int i = 0; i < kHeadStepsAhead; ++i) {
        multiply(step + i, i);
        if (step + kHeadStepsAhead < args_.in_dim / kHeadStep) load_weights(step + kHeadStepsAhead + i, i);
      }
    }
    store();
  }

 private:
  WW_DEVICE void load_weights(int step, int slot) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      ahead_[slot][n] = *reinterpret_cast<const uint4*>(weight_ + static_cast<int64_t>(n) * 8 * args_.in_dim + step * kHeadStep);
    }
  }

  // Of rows that are not there: zeros.
  WW_DEVICE uint4 load_row(int row, int step) const {
    if (row >= args_.rows) return uint4{0, 0, 0, 0};
    const auto* from = static_cast<const uint16_t*>(args_.x) + row * args_.x_stride + head_ * args_.x_head_stride;
    return *reinterpret_cast<const uint4*>(from + step * kHeadStep + lane_ % 4 * 8);
  }

  WW_DEVICE void multiply(int step, int slot) {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
      const int row = first_row_ + m * 16 + lane_ / 4;
      const uint4 low = load_row(row, step), high = load_row(row + 8, step);
      const ptx::u32 first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        E::mma(sums_[m][n], first, ahead_[slot][n].x, ahead_[slot][n].y);
        E::mma(sums_[m][n], second, ahead_[slot][n].z, ahead_[slot][n].w);
      }
    }
  }

  WW_DEVICE void store() const {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row_ + m * 16 + half * 8 + lane_ / 4;
        if (row >= args_.rows) continue;
        auto* to = static_cast<uint16_t*>(args_.y) + row * args_.y_stride + head_ * args_.y_head_stride + column_ + lane_ % 4 * 2;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          *reinterpret_cast<ptx::u32*>(to + n * 8) = E::pack(sums_[m][n][half * 2], sums_[m][n][half * 2 + 1]);
        }
      }
    }
  }

  const HeadProductsArgs& args_;
  const int head_, lane_;
  int column_, first_row_;
  const uint16_t* weight_;
  uint4 ahead_[kHeadStepsAhead][2];
  float sums_[kRowBlocks][2][4] = {};
};

// Grid: (row blocks x column blocks, the latter fastest; heads).
template <class E, int kRowBlocks, int kWarps>
__global__ void __launch_bounds__(32 * kWarps) head_products_kernel(const __grid_constant__ HeadProductsArgs args) {
  ptx::launch_dependents();
  HeadProducts<E, kRowBlocks, kWarps>(args).run();
}

}  // namespace warpweave::gpu
