// stream_gemm.cu with weights and inputs in e4m3: a chunk's products, and what the codes stand for. C: Config there.
#pragma once

#include "device/cuda/wgmma_fp8.h"
#include "ops/cuda/gemm_ring.cuh"
#include "ops/cuda/stream_gemm.h"

namespace warpweave::gpu {

// Of a block of rows.
template <class C>
using BlockSums = float[C::kBoxes][C::kColumns / 2];
template <class C>
using Sums = BlockSums<C>[C::kRowBlocks];

// Of a thread's two rows in each block of rows, of a chunk (ChunkScales).
template <class C>
struct RowScales {
  float of[C::kRowBlocks][2];
};

template <class C>
__device__ __forceinline__ void multiply_codes(ptx::u32 x, ptx::u32 w, const float (&scales)[2], BlockSums<C>& sum) {
  BlockSums<C> of_chunk;
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kRowBytes / 32; ++k) {
#pragma unroll
    for (int box = 0; box < C::kBoxes; ++box) {
      ptx::WgmmaE4m3<C::kColumns>::template ss<kRowBytes>(of_chunk[box], ptx::wgmma_advance(x, k * 32),
                                                          ptx::wgmma_advance(w, box * C::kBoxBytes + k * 32), k > 0);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
#pragma unroll
  for (int box = 0; box < C::kBoxes; ++box) {
#pragma unroll
    for (int i = 0; i < C::kColumns / 2; ++i) sum[box][i] += of_chunk[box][i] * (C::kBlocks ? scales[i / 2 % 2] : 1.0f);
  }
}

// The first row of a thread's two in a block of 64; the other one is 8 behind.
__device__ __forceinline__ int row_of_thread() {
  const int thread = static_cast<int>(threadIdx.x);
  return thread / 32 % 4 * 16 + thread % 32 / 4;
}

// Scales of blocks: a chunk is as deep as a block, a tile has the weight rows of one. They are asked for a chunk ahead.
template <class C>
class ChunkScales {
 public:
  template <class Args>
  __device__ ChunkScales(const Args& a, const DepthShare& share) : left_(share.count) {
    if constexpr (C::kBlocks) {
      w_ = a.w_scales + int64_t{share.tile} * a.scale_stride + share.rank;
      x_ = a.x_scales + int64_t{share.rank} * a.rows;
      w_step_ = a.splits;
      x_step_ = a.splits * a.rows;
#pragma unroll
      for (int i = 0; i < 2 * C::kRowBlocks; ++i) row_[i] = min(i / 2 * kStreamGemmRows + i % 2 * 8 + row_of_thread(), a.rows - 1);
      ask();
    }
  }
  __device__ __forceinline__ RowScales<C> next() {
    RowScales<C> out = {};
    if constexpr (C::kBlocks) {
#pragma unroll
      for (int i = 0; i < 2 * C::kRowBlocks; ++i) out.of[i / 2][i % 2] = of_rows_[i] * of_weights_;
      w_ += w_step_;
      x_ += x_step_;
      if (--left_ > 0) ask();
    }
    return out;
  }

 private:
  __device__ __forceinline__ void ask() {
    of_weights_ = __ldg(w_);
#pragma unroll
    for (int i = 0; i < 2 * C::kRowBlocks; ++i) of_rows_[i] = __ldcg(x_ + row_[i]);
  }

  const float *w_, *x_;
  int left_, w_step_, x_step_;
  int row_[2 * C::kRowBlocks];
  float of_weights_, of_rows_[2 * C::kRowBlocks];
};

// Scales of rows: those of this thread's columns, and of the rows that it has.
template <class C>
struct Scales {
  static constexpr bool kUsed = C::kCodes && !C::kBlocks;
  static constexpr bool kEarly = kUsed && C::kRowBlocks == 1;  // else there are no registers for them
  float2 w[C::kBoxes][C::kColumns / 8];
  float x[C::kRowBlocks][2];

  template <class Args>
  __device__ void read_weights(const Args& a, int tile) {
    const int first = tile * C::kBoxRows + threadIdx.x / 128 * C::kColumns + threadIdx.x % 4 * 2;
#pragma unroll
    for (int box = 0; box < C::kBoxes; ++box) {
#pragma unroll
      for (int j = 0; j < C::kColumns / 8; ++j) {
        const int column = min(first + 8 * j, a.columns - 2) + box * a.columns;
        w[box][j] = __ldg(reinterpret_cast<const float2*>(a.w_scales + column));
      }
    }
  }
  template <class Args>
  __device__ void read_inputs(const Args& a) {
#pragma unroll
    for (int i = 0; i < 2 * C::kRowBlocks; ++i) {
      x[i / 2][i % 2] = a.x_scales[min(i / 2 * kStreamGemmRows + i % 2 * 8 + row_of_thread(), a.rows - 1)];
    }
  }
  __device__ void apply(Sums<C>& sum) const {
#pragma unroll
    for (int block = 0; block < C::kRowBlocks; ++block) {
#pragma unroll
      for (int box = 0; box < C::kBoxes; ++box) {
#pragma unroll
        for (int i = 0; i < C::kColumns / 2; ++i) {
          const float2 of_columns = w[box][i / 4];
          sum[block][box][i] *= x[block][i / 2 % 2] * (i % 2 == 0 ? of_columns.x : of_columns.y);
        }
      }
    }
  }
};

}  // namespace warpweave::gpu
