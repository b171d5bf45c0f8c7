// The mma.sync kernels of lora.h: for lora.cu, and for their test, which runs them on the host.
//
// Rows and matrices come straight from memory, 16 (ranks: 8) bytes a lane: a lane's numbers are neighbours, which is another
// order of the depth than the instruction's own, the same one for both operands.
#pragma once

#include <cstdint>

#include "device/cuda/ptx.h"
#include "ops/cuda/lora.h"

namespace warpweave::gpu {

constexpr int kLoraWarps = 4, kLoraThreads = 32 * kLoraWarps;
constexpr int kLoraStep = 32;                           // of the depth, at once
constexpr int kLoraWarpDepth = 128;                     // of a slice, each warp's
constexpr int kLoraSlice = kLoraWarps * kLoraWarpDepth; // of the depth, summed apart
constexpr int kLoraRanks = 64;                          // of a CTA that brings rows to ranks
constexpr int kLoraColumns = 256;                       // of a CTA that adds to the result
constexpr int kLoraFewRanks = 64, kLoraMostRanks = 512;  // of one part, whose sums stand in shared memory

struct LoraArgs {
  const LoraSiteWeights* sites;  // of slot 0
  int64_t slot_stride;
  const LoraTile* tiles;
  int num_tiles;
  const void* x;
  int64_t in_features;
  int slices;                    // of the depth, that CTAs of their own sum; 1: one sums all
  int max_ranks;                 // of all parts of an adapter: a row's width in `sums`
  int rank_blocks;               // of kLoraRanks, that hold them
  float* sums;                   // [slices, tiles, 16, max_ranks]
  void* y;
  int64_t y_stride;
  bool by_place;                 // y is [tiles * 16, y_stride] and written; else rows of y are added to
  LoraSiteShape shape;

  WW_DEVICE const LoraSiteWeights& weights(int slot) const { return sites[slot * slot_stride]; }
  WW_DEVICE float* sums_of(int slice, int tile, int row) const {
    return sums + ((static_cast<int64_t>(slice) * num_tiles + tile) * kLoraTileRows + row) * max_ranks;
  }
};

// Asks for the expanding kernel's matrices, a share of this CTA's tile.
WW_DEVICE void prefetch_expand(const LoraArgs& args, const LoraSiteWeights& weights) {
  constexpr int kLine = 128;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kLoraThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(args.slices) * args.rank_blocks * kLoraThreads;
  for (int part = 0; part < args.shape.num_parts; ++part) {
    if (weights.expand[part] == nullptr) continue;
    const int64_t bytes = args.shape.columns[part] * weights.rank[part] * 2;
    for (int64_t at = first * kLine; at < bytes; at += step * kLine) {
      ptx::prefetch_l2(static_cast<const char*>(weights.expand[part]) + at);
    }
  }
}

// sum += rows times ranks, of kSteps steps of the depth; blocks of 8 ranks.
template <class E, int kSteps, int kBlocks>
WW_DEVICE void multiply_ranks(const uint4 (&of_rows)[kSteps][2], const uint4 (&of_ranks)[kSteps][kBlocks], int ranks,
                              float (&sum)[kBlocks][4]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint4 low = of_rows[step][0], high = of_rows[step][1];
    const ptx::u32 first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (block * 8 >= ranks) continue;
      E::mma(sum[block], first, of_ranks[step][block].x, of_ranks[step][block].y);
      E::mma(sum[block], second, of_ranks[step][block].z, of_ranks[step][block].w);
    }
  }
}

// What the warps of either half of the CTA have summed; both together are the whole.
template <int kRanks>
using LoraWarpSums = float[kLoraWarps / 2][kLoraTileRows][kRanks];

// `sync`: of the four warps; the last one stands at the end.
template <int kBlocks, typename Sync>
WW_DEVICE void add_warps(const float (&sum)[kBlocks][4], int warp, int lane, LoraWarpSums<8 * kBlocks>& of_warp,
                        const Sync& sync) {
  constexpr int kHalf = kLoraWarps / 2;
  for (int second_half = 0; second_half < 2; ++second_half) {
    if (warp / kHalf == second_half) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& at = of_warp[warp % kHalf][lane / 4 + i / 2 * 8][block * 8 + lane % 4 * 2 + i % 2];
          at = second_half ? at + sum[block][i] : sum[block][i];
        }
      }
    }
    sync();
  }
}

// Grid: (tiles, slices x blocks of ranks, the latter fastest). Matrices are asked for before the kernel behind may begin,
// whose weights would stand in front of them in memory's queue. Little shared memory: that kernel wants the rest of the SM.
template <class E>
__global__ void __launch_bounds__(kLoraThreads) lora_shrink_kernel(const __grid_constant__ LoraArgs args) {
  constexpr int kBlocks = kLoraRanks / 8, kSteps = kLoraWarpDepth / kLoraStep;
  __shared__ LoraWarpSums<kLoraRanks> of_warp;
  const LoraTile& tile = args.tiles[blockIdx.x];
  const int slot = tile.slot;
  const int rows[2] = {tile.rows[threadIdx.x % 32 / 4], tile.rows[threadIdx.x % 32 / 4 + 8]};
  const LoraSiteWeights& weights = args.weights(slot < 0 ? 0 : slot);
  const int first_slice = static_cast<int>(blockIdx.y) / args.rank_blocks;
  const int first_rank = static_cast<int>(blockIdx.y) % args.rank_blocks * kLoraRanks;
  const int ranks = slot < 0 ? 0 : min(weights.ranks - first_rank, kLoraRanks);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t depth = args.in_features;
  const auto* const a = static_cast<const uint16_t*>(weights.shrink) + (first_rank + lane / 4) * depth;
  const auto k_of = [&](int slice, int step) {
    return static_cast<int64_t>(slice) * kLoraSlice + warp * kLoraWarpDepth + step * kLoraStep + lane % 4 * 8;
  };
  uint4 of_ranks[kSteps][kBlocks];
  const auto load = [&](int slice) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t k = k_of(slice, step);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        of_ranks[step][block] = uint4{0, 0, 0, 0};
        if (block * 8 < ranks && k < depth) of_ranks[step][block] = *reinterpret_cast<const uint4*>(a + block * 8 * depth + k);
      }
    }
  };
  load(first_slice);
  if (ranks > 0) prefetch_expand(args, weights);
  ptx::launch_dependents();
  ptx::grid_dependency_wait();  // also where there is nothing to do: who waits for this kernel waits for those before it
  if (ranks <= 0) return;

  constexpr int kOfThread = kLoraTileRows * kLoraRanks / kLoraThreads;
  float total[kOfThread] = {};
  const int num_slices = static_cast<int>((depth + kLoraSlice - 1) / kLoraSlice);
  for (int slice = first_slice; slice < num_slices; slice += args.slices) {
    uint4 of_rows[kSteps][2];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t k = k_of(slice, step);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        of_rows[step][half] = uint4{0, 0, 0, 0};
        if (rows[half] >= 0 && k < depth) {
          of_rows[step][half] = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(args.x) + rows[half] * depth + k);
        }
      }
    }
    float sum[kBlocks][4] = {};
    multiply_ranks<E>(of_rows, of_ranks, ranks, sum);
    if (slice + args.slices < num_slices) load(slice + args.slices);
    __syncthreads();  // the slice before was read
    add_warps(sum, warp, lane, of_warp, [] { __syncthreads(); });
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      const int at = i * kLoraThreads + static_cast<int>(threadIdx.x), row = at / kLoraRanks, rank = at % kLoraRanks;
      total[i] += of_warp[0][row][rank] + of_warp[1][row][rank];
    }
  }
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const int at = i * kLoraThreads + static_cast<int>(threadIdx.x), row = at / kLoraRanks, rank = at % kLoraRanks;
    if (rank < ranks) args.sums_of(first_slice, static_cast<int>(blockIdx.x), row)[first_rank + rank] = total[i];
  }
}

struct LoraColumns {
  int part;
  int64_t first;                 // of the part
};
// The columns of a CTA: parts stand one behind the other, each in blocks of kLoraColumns.
WW_DEVICE LoraColumns lora_columns(const LoraSiteShape& shape, int block) {
  LoraColumns out = {0, static_cast<int64_t>(block) * kLoraColumns};
  while (out.part + 1 < shape.num_parts) {
    const int64_t width = (shape.columns[out.part] + kLoraColumns - 1) / kLoraColumns * kLoraColumns;
    if (out.first < width) break;
    out.first -= width;
    ++out.part;
  }
  return out;
}

// Two neighbours of a result: f32, or the bits of E's numbers.
template <class E>
struct LoraPair {
  static WW_DEVICE void read(const float* y, float (&to)[2]) {
    const float2 pair = *reinterpret_cast<const float2*>(y);
    to[0] = pair.x;
    to[1] = pair.y;
  }
  static WW_DEVICE void read(const uint16_t* y, float (&to)[2]) {
    const ptx::u32 pair = *reinterpret_cast<const ptx::u32*>(y);
    to[0] = E::low(pair);
    to[1] = E::high(pair);
  }
  static WW_DEVICE void write(float* y, float first, float second) { *reinterpret_cast<float2*>(y) = float2{first, second}; }
  static WW_DEVICE void write(uint16_t* y, float first, float second) { *reinterpret_cast<ptx::u32*>(y) = E::pack(first, second); }
};

// Grid: (tiles, blocks of kLoraColumns columns of the parts). Y: float or uint16_t, the bits of E's numbers. Columns are even.
// kMostRank: of a part, which shared memory has room for.
template <class E, typename Y, int kMostRank>
__global__ void __launch_bounds__(kLoraThreads) lora_expand_kernel(const __grid_constant__ LoraArgs args) {
  constexpr int kWarpColumns = kLoraColumns / kLoraWarps, kBlocks = kWarpColumns / 8;
  __shared__ ptx::u32 ranks_of_rows[kLoraTileRows * (kMostRank / 2 + 4)];  // [16][rank / 2 + 4]: pairs of E's numbers
  const int tile = static_cast<int>(blockIdx.x), slot = args.tiles[tile].slot;
  const LoraSiteWeights& weights = args.weights(slot < 0 ? 0 : slot);
  const auto [part, first] = lora_columns(args.shape, static_cast<int>(blockIdx.y));
  const bool empty = slot < 0 || weights.expand[part] == nullptr;
  const bool idle = slot < 0 || (empty && !args.by_place);
  const int rank = empty ? 0 : weights.rank[part], pairs = rank / 2, stride = pairs + 4;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t column = first + warp * kWarpColumns, columns = args.shape.columns[part];
  const auto* const b = static_cast<const uint16_t*>(weights.expand[part]) + (column + lane / 4) * rank + lane % 4 * 4;
  const auto load = [&](int block, int k) {
    const bool there = k < rank && column + block * 8 + lane / 4 < columns;
    return there ? *reinterpret_cast<const uint2*>(b + block * 8 * rank + k) : uint2{0, 0};
  };
  uint2 next[kBlocks];
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) next[block] = load(block, 0);
  const int rows[2] = {args.tiles[tile].rows[lane / 4], args.tiles[tile].rows[lane / 4 + 8]};
  ptx::launch_dependents();
  ptx::grid_dependency_wait();  // also where there is nothing to do, as above
  if (idle) return;

  float sum[kBlocks][4] = {};  // begins as the result so far
  const auto result = [&](int half, int block) {
    const int64_t row = args.by_place ? tile * kLoraTileRows + lane / 4 + half * 8 : rows[half];
    return static_cast<Y*>(args.y) + row * args.y_stride + args.shape.first_column[part] + column + block * 8 + lane % 4 * 2;
  };
  const auto writes = [&](int half, int block) { return rows[half] >= 0 && column + block * 8 + lane % 4 * 2 < columns; };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      float pair[2] = {};
      if (!args.by_place && writes(half, block)) LoraPair<E>::read(result(half, block), pair);
      sum[block][half * 2] = pair[0];
      sum[block][half * 2 + 1] = pair[1];
    }
  }
  const float scale = weights.scale[part];
  for (int i = static_cast<int>(threadIdx.x); i < kLoraTileRows * pairs; i += kLoraThreads) {
    const int row = i / pairs, pair = i % pairs;
    float of_pair[2] = {};
#pragma unroll 8
    for (int slice = 0; slice < args.slices; ++slice) {
      const float2 from = *reinterpret_cast<const float2*>(args.sums_of(slice, tile, row) + weights.first_rank[part] + pair * 2);
      of_pair[0] += from.x;
      of_pair[1] += from.y;
    }
    ranks_of_rows[row * stride + pair] = E::pack(scale * of_pair[0], scale * of_pair[1]);
  }
  __syncthreads();
  for (int k = 0; k < rank; k += kLoraRankMultiple) {
    const ptx::u32* const low = ranks_of_rows + lane / 4 * stride + k / 2 + lane % 4 * 2;
    const ptx::u32* const high = low + 8 * stride;
    const ptx::u32 of_rows[4] = {low[0], high[0], low[1], high[1]};
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint2 w = next[block];
      next[block] = load(block, k + kLoraRankMultiple);
      E::mma(sum[block], of_rows, w.x, w.y);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (writes(half, block)) LoraPair<E>::write(result(half, block), sum[block][half * 2], sum[block][half * 2 + 1]);
    }
  }
}

}  // namespace warpweave::gpu
