// How the pieces of a cut unit become its rows (sm90_short.cuh): a worker's multiplying warpgroup that has written its
// piece waits for the others of the same rows, and merges a share of them by their log-sum-exps. The order of sums
// depends on the cuts alone.
//
// All of it runs once a launch, and in a served step its code has to be fetched: so it is short (one copy, loops of few
// turns not unrolled) rather than fast by itself.
#pragma once

#include <cuda_fp16.h>

#include "attention/backends/fa3/kernels/sm90_short_shared.cuh"

namespace warpweave::cuda {

template <class C>
class ShortMerge {
 public:
  // A cut unit, and the workers where its first and its last piece are.
  struct Cut {
    int q_begin, q_len, unit, first_worker, last_worker;
  };

  WW_DEVICE ShortMerge(const ShortCall& call, int group)
      : p_(call.p), work_(call.work), launch_(call.launch), group_(group) {}

  // The warpgroup's piece of the unit that begins at `first_worker` is written.
  WW_DEVICE void arrive(int first_worker) const {
    __threadfence();
    meet();
    if (thread() == 0) atomicAdd(arrivals(first_worker), 1);
  }

  // For who has arrived.
  WW_DEVICE void run(const Cut& cut) const {
    const ShortUnit<C> unit(launch_, cut.unit, cut.q_len);
    if (unit.rows <= group_ * 64) return;
    const int pieces = launch_.lockstep.divide(cut.last_worker - cut.first_worker) + 1;
    const int index = launch_.lockstep.divide(static_cast<int>(blockIdx.x) - cut.first_worker);
    wait(cut.first_worker, pieces);
    const int warp = index * 4 + thread() / 32;
#pragma unroll 1
    for (int i = warp; i < kParts; i += pieces * 4) merge(cut, unit, pieces, i);
  }

 private:
  static constexpr int kColumnTiles = 2;  // of 8 columns, that a warp merges at once, of 16 rows
  static constexpr int kPartsOfRows = C::kDim / 8 / kColumnTiles;
  static constexpr int kParts = 4 * kPartsOfRows;  // of 64 rows
  static constexpr int kAhead = 8;                 // pieces on their way
  static constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
  // The maximum of pieces without a visible key; differences with it are numbers.
  static constexpr float kNone = -1e30f;

  // What a lane has of rows lane / 4 and lane / 4 + 8.
  struct Sums {
    float top[2] = {kNone, kNone}, sum[2] = {0, 0};  // top: log2 units
    float2 out[2][kColumnTiles] = {};

    WW_DEVICE void next_row() {
      top[0] = top[1], sum[0] = sum[1];
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) out[0][tile] = out[1][tile];
    }
  };

  static WW_DEVICE int thread() { return static_cast<int>(threadIdx.x) % 128; }
  WW_DEVICE void meet() const { ptx::named_barrier_sync(1 + group_, 128); }

  // Of the warpgroups with these rows that have arrived, and then of those that have seen it, too; zero between
  // launches. In the room of SplitCut, which the merging kernel of other attention reads.
  WW_DEVICE int* arrivals(int first_worker) const {
    static_assert(C::kConsumers * sizeof(int) <= sizeof(SplitCut));
    return reinterpret_cast<int*>(work_.cuts + first_worker) + group_;
  }

  WW_DEVICE void wait(int first_worker, int pieces) const {
    if (thread() == 0) {
      int* const count = arrivals(first_worker);
      while (ptx::load_acquire(count) < pieces) {}
      if (atomicAdd(count, 1) == 2 * pieces - 1) atomicExch(count, 0);
    }
    meet();
  }

  WW_DEVICE void merge(const Cut& cut, const ShortUnit<C>& unit, int pieces, int part) const {
    const int row_block = group_ * 4 + part / kPartsOfRows, column_tile = part % kPartsOfRows * kColumnTiles;
    if (row_block * 16 >= unit.rows) return;
    Sums sums;
    Pieces next = {2 * cut.first_worker + 1, 2 * (cut.first_worker + work_.lockstep), pieces};
#pragma unroll 1
    do add_pieces({row_block, column_tile}, next, sums);
    while (next.left > 0);
    int local = row_block * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll 1
    for (int row = 0; row < 2; ++row, local += 8) {
      if (local < unit.rows) write(cut, unit, {local, column_tile}, sums);
      sums.next_row();
    }
  }

  struct Place {
    int row_block, column_tile;
  };
  // Of a unit, from some piece on: its slot and the next one's, from which on they are as far apart as lockstep says.
  struct Pieces {
    int slot, after, left;
  };
  WW_DEVICE void add_pieces(const Place& place, Pieces& next, Sums& sums) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = place.row_block * 16 + lane / 4;
    const int last_slot = next.after + (next.left - 2) * 2 * work_.lockstep;
    float2 max_sum[kAhead][2];
    uint2 piece[kAhead][kColumnTiles];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      // Past the last: that one again.
      const int at = k == 0 ? next.slot : min(next.after + (k - 1) * 2 * work_.lockstep, last_slot);
      const float2* const from = reinterpret_cast<const float2*>(work_.partial_max_sum) +
                                 static_cast<int64_t>(at) * C::kTileRows + row;
      const uint2* const numbers = short_piece<C>(work_, at, place.row_block, place.column_tile) + lane;
#pragma unroll
      for (int i = 0; i < 2; ++i) max_sum[k][i] = __ldcg(from + i * 8);
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) piece[k][tile] = __ldcg(numbers + tile * 32);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = sums.top[i];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (k >= next.left) max_sum[k][i].x = -INFINITY;
        top = fmaxf(top, max_sum[k][i].x);
      }
      const float before = ptx::exp2_approx(sums.top[i] - top);
      sums.top[i] = top;
      sums.sum[i] *= before;
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) sums.out[i][tile].x *= before, sums.out[i][tile].y *= before;
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const float factor = ptx::exp2_approx(max_sum[k][i].x - top);
        sums.sum[i] = __fmaf_rn(max_sum[k][i].y, factor, sums.sum[i]);
#pragma unroll
        for (int tile = 0; tile < kColumnTiles; ++tile) {
          const float2 x = pair_of(i == 0 ? piece[k][tile].x : piece[k][tile].y);
          float2& sum = sums.out[i][tile];
          sum.x = __fmaf_rn(x.x, factor, sum.x), sum.y = __fmaf_rn(x.y, factor, sum.y);
        }
      }
    }
    const int behind = next.after + (kAhead - 1) * 2 * work_.lockstep;
    next = {behind, behind + 2 * work_.lockstep, next.left - kAhead};
  }
  static WW_DEVICE float2 pair_of(const ptx::u32& halves) {
    return __half22float2(reinterpret_cast<const __half2&>(halves));
  }

  // A row of the unit.
  struct OutputRow {
    int local, column_tile;
  };
  // The first of the sums' rows.
  WW_DEVICE void write(const Cut& cut, const ShortUnit<C>& unit, OutputRow at, const Sums& sums) const {
    const auto [local, column_tile] = at;
    const int in_head = unit.first_row + local, query = launch_.group.divide(in_head),
              head = unit.kv_head * p_.group + in_head - query * p_.group;
    const bool empty = sums.top[0] == kNone;
    float top = sums.top[0], scale = empty ? 0.0f : 1.0f, all = sums.sum[0];
    if (p_.sinks != nullptr && !empty) {
      const float sink = p_.sinks[head] * kLog2e, higher = fmaxf(top, sink);
      scale = ptx::exp2_approx(top - higher);
      all = all * scale + ptx::exp2_approx(sink - higher);
      top = higher;
    }
    if (!empty) scale = __fdividef(scale, all);
    const int64_t token = static_cast<int64_t>(cut.q_begin) + query;
    char* const out = static_cast<char*>(p_.out) +
                      (token * p_.out_token_stride + static_cast<int64_t>(head) * C::kDim + column_tile * 8 +
                       static_cast<int>(threadIdx.x) % 4 * 2) * 2;
#pragma unroll
    for (int tile = 0; tile < kColumnTiles; ++tile) {
      const float2 x = sums.out[0][tile];
      *reinterpret_cast<ptx::u32*>(out + tile * 16) = C::Element::pack(x.x * scale, x.y * scale);
    }
    if (p_.lse == nullptr || column_tile != 0 || threadIdx.x % 4 != 0) return;
    p_.lse[token * p_.num_q_heads + head] = empty ? -INFINITY : (top + ptx::log2_approx(all)) * kLn2;
  }

  const AttentionParams& p_;
  const SplitWork& work_;
  const ShortLaunch& launch_;
  const int group_;
};

}  // namespace warpweave::cuda
