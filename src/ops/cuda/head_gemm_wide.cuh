// The mma.sync kernel of head_gemm (latent.h) for many rows, with the sums, and the bits, of the one for few
// (head_gemm.cuh): for its launch, and for its test, which runs it on the host.
//
// A CTA has 64 columns of a head's result for 64 rows; chunks of the depth stand in shared memory, so that rows and weights
// are read once for 64 of the other. What the other kernel's four warps sum each stays apart in four sums, added in their order.
// Weights are asked for ahead of the predecessor's end.
#pragma once

#include "ops/cuda/head_gemm.cuh"

namespace warpweave::gpu {

constexpr int kWideRows = 64, kWideCols = 64;   // of a CTA
constexpr int kWideStages = 2;
constexpr int kWideRowBytes = kHeadDepthMultiple * 2;
constexpr int kWideTileBytes = kWideRows * kWideRowBytes;
constexpr int kWideSmemBytes = kWideStages * 2 * kWideTileBytes;
static_assert(kWideRows == kWideCols);

template <class E>
class HeadGemmWide {
 public:
  WW_DEVICE HeadGemmWide(const HeadGemmArgs& args, int block, int head, ptx::u32 smem)
      : args_(args), head_(head), warp_(static_cast<int>(threadIdx.x) / 32), lane_(static_cast<int>(threadIdx.x) % 32), smem_(smem) {
    const int column_blocks = args.out_dim / kWideCols;
    column_ = block % column_blocks * kWideCols;
    first_row_ = block / column_blocks * kWideRows;
  }

  WW_DEVICE void run() {
    const int chunks = args_.in_dim / kHeadDepthMultiple;
#pragma unroll
    for (int i = 0; i < kWideStages; ++i) {
      if (i < chunks) load_weights(i);
    }
    ptx::grid_dependency_wait();
#pragma unroll
    for (int i = 0; i < kWideStages; ++i) {
      if (i < chunks) load_rows(i);
      ptx::cp_async_commit();
    }
    for (int chunk = 0; chunk < chunks; ++chunk) {
      ptx::cp_async_wait<kWideStages - 1>();
      __syncthreads();
      multiply(chunk % kWideStages);
      __syncthreads();
      if (chunk + kWideStages < chunks) {
        load_weights(chunk + kWideStages);
        load_rows(chunk + kWideStages);
      }
      ptx::cp_async_commit();
    }
    store();
  }

 private:
  static constexpr int kUnits = kWideRowBytes / 16;
  static constexpr int kOwnRows = 2, kOwnCols = 4;  // of a warp, in blocks of 16 and of 8
  static_assert(kHeadWarps == 4 && kWideRows == 2 * 16 * kOwnRows && kWideCols == 2 * 8 * kOwnCols);

  WW_DEVICE ptx::u32 tile(int stage, bool rows) const { return smem_ + (stage * 2 + (rows ? 1 : 0)) * kWideTileBytes; }
  // Four lanes take 64 bytes of a row: those of neighbouring rows stand in different banks.
  static WW_DEVICE ptx::u32 place(int row, int unit) { return row * kWideRowBytes + (unit ^ (row & 1) << 2) * 16; }

  WW_DEVICE void load_weights(int chunk) const {
    const auto* all = static_cast<const uint16_t*>(args_.weight) + head_ * args_.weight_head_stride + chunk * kHeadDepthMultiple;
    for (int i = threadIdx.x; i < kWideCols * kUnits; i += 32 * kHeadWarps) {
      const int row = i / kUnits, unit = i % kUnits;
      ptx::cp_async_16(tile(chunk % kWideStages, false) + place(row, unit),
                       all + static_cast<int64_t>(column_ + row) * args_.in_dim + unit * 8, 16);
    }
  }
  // Of rows that are not there: zeros.
  WW_DEVICE void load_rows(int chunk) const {
    const auto* all = static_cast<const uint16_t*>(args_.x) + head_ * args_.x_head_stride + chunk * kHeadDepthMultiple;
    for (int i = threadIdx.x; i < kWideRows * kUnits; i += 32 * kHeadWarps) {
      const int row = i / kUnits, unit = i % kUnits;
      const bool has = first_row_ + row < args_.rows;
      ptx::cp_async_16(tile(chunk % kWideStages, true) + place(row, unit),
                       has ? all + (first_row_ + row) * args_.x_stride + unit * 8 : all, has ? 16 : 0);
    }
  }

  WW_DEVICE uint4 lane_of(ptx::u32 tile, int row, int quarter) const {
    ptx::u32 w[4];
    ptx::load_shared_16(w, tile + place(row + lane_ / 4, quarter * 4 + lane_ % 4));
    return uint4{w[0], w[1], w[2], w[3]};
  }

  WW_DEVICE void multiply(int stage) {
    const ptx::u32 rows = tile(stage, true), weights = tile(stage, false);
    const int row = warp_ / 2 * 16 * kOwnRows, column = warp_ % 2 * 8 * kOwnCols;
#pragma unroll
    for (int quarter = 0; quarter < kHeadWarps; ++quarter) {
      uint4 w[kOwnCols];
#pragma unroll
      for (int n = 0; n < kOwnCols; ++n) w[n] = lane_of(weights, column + n * 8, quarter);
#pragma unroll
      for (int m = 0; m < kOwnRows; ++m) {
        const uint4 low = lane_of(rows, row + m * 16, quarter), high = lane_of(rows, row + m * 16 + 8, quarter);
        const ptx::u32 first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
        for (int n = 0; n < kOwnCols; ++n) {
          E::mma(sums_[quarter][m][n], first, w[n].x, w[n].y);
          E::mma(sums_[quarter][m][n], second, w[n].z, w[n].w);
        }
      }
    }
  }

  WW_DEVICE void store() const {
    const int row_at = first_row_ + warp_ / 2 * 16 * kOwnRows + lane_ / 4;
    const int column = column_ + warp_ % 2 * 8 * kOwnCols + lane_ % 4 * 2;
#pragma unroll
    for (int m = 0; m < kOwnRows; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_at + m * 16 + half * 8;
        if (row >= args_.rows) continue;
        auto* to = static_cast<uint16_t*>(args_.y) + row * args_.y_stride + head_ * args_.y_head_stride + column;
#pragma unroll
        for (int n = 0; n < kOwnCols; ++n) {
          float total[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            total[i] = sums_[0][m][n][half * 2 + i];
            for (int quarter = 1; quarter < kHeadWarps; ++quarter) total[i] += sums_[quarter][m][n][half * 2 + i];
          }
          *reinterpret_cast<ptx::u32*>(to + n * 8) = E::pack(total[0], total[1]);
        }
      }
    }
  }

  const HeadGemmArgs& args_;
  const int head_, warp_, lane_;
  const ptx::u32 smem_;
  int column_, first_row_;
  float sums_[kHeadWarps][kOwnRows][kOwnCols][4] = {};
};

// Grid: (row blocks x column blocks, the latter fastest; heads).
template <class E>
__global__ void __launch_bounds__(32 * kHeadWarps) head_gemm_wide_kernel(const __grid_constant__ HeadGemmArgs args) {
  extern __shared__ __align__(128) char head_smem[];
  ptx::launch_dependents();
  HeadGemmWide<E>(args, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), ptx::smem_address(head_smem)).run();
}

}  // namespace warpweave::gpu
