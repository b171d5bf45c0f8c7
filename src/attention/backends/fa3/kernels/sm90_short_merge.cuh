// How the pieces of a cut unit become its rows (sm90_short.cuh): a worker's multiplying warpgroup that has written its
// piece waits for the others of the same rows, and merges a share of them by their log-sum-exps. The order of sums
// depends on the cuts alone.
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

  WW_DEVICE ShortMerge(const AttentionParams& p, const SplitWork& work, int group)
      : p_(p), work_(work), group_(group) {}

  // The warpgroup's piece of the unit that begins at `first_worker` is written.
  WW_DEVICE void arrive(int first_worker) const {
    __threadfence();
    meet();
    if (thread() == 0) atomicAdd(arrivals(first_worker), 1);
  }

  // For who has arrived.
  WW_DEVICE void run(const Cut& cut) const {
    const ShortUnit<C> unit(p_, work_, cut.unit, cut.q_len);
    if (unit.rows <= group_ * 64) return;
    const int pieces = (cut.last_worker - cut.first_worker) / work_.lockstep + 1;
    const int index = (static_cast<int>(blockIdx.x) - cut.first_worker) / work_.lockstep;
    wait(cut.first_worker, pieces);
    const int warp = index * 4 + thread() / 32;
    for (int i = warp; i < kParts; i += pieces * 4) merge(cut, unit, pieces, i);
  }

 private:
  static constexpr int kColumnTiles = 2;  // of 8 columns, that a warp merges at once, of 16 rows
  static constexpr int kPartsOfRows = C::kDim / 8 / kColumnTiles;
  static constexpr int kParts = 4 * kPartsOfRows;  // of 64 rows
  static constexpr int kAhead = 8;                 // pieces on their way
  static constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

  // What a lane has of rows lane / 4 and lane / 4 + 8.
  struct Sums {
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};  // top: log2 units
    float4 out[kColumnTiles] = {};
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
    for (int first = 0; first < pieces; first += kAhead) {
      add_pieces(cut, {row_block, column_tile}, first, min(pieces - first, kAhead), sums);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int local = row_block * 16 + static_cast<int>(threadIdx.x) % 32 / 4 + row * 8;
      if (local < unit.rows) write(cut, unit, {local, column_tile, row}, sums);
    }
  }

  struct Place {
    int row_block, column_tile;
  };
  WW_DEVICE void add_pieces(const Cut& cut, const Place& place, int first, int count, Sums& sums) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float2 max_sum[kAhead][2];
    uint2 piece[kAhead][kColumnTiles];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int i = min(first + k, first + count - 1), worker = cut.first_worker + i * work_.lockstep;
      const int slot = 2 * worker + (i == 0 ? 1 : 0);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        max_sum[k][row] = __ldcg(reinterpret_cast<const float2*>(work_.partial_max_sum) +
                                 static_cast<int64_t>(slot) * C::kTileRows + place.row_block * 16 + lane / 4 + row * 8);
        if (k >= count) max_sum[k][row] = make_float2(-INFINITY, 0);
      }
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) {
        piece[k][tile] = __ldcg(short_piece<C>(work_, slot, place.row_block, place.column_tile + tile) + lane);
      }
    }
    float factor[kAhead][2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float top = sums.top[row];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) top = fmaxf(top, max_sum[k][row].x);
      const float before = sums.top[row] == -INFINITY ? 0.0f : ptx::exp2_approx(sums.top[row] - top);
      sums.sum[row] *= before;
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) scale(sums.out[tile], row, before);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const float own = max_sum[k][row].x;
        factor[k][row] = own == -INFINITY ? 0.0f : ptx::exp2_approx(own - top);
        sums.sum[row] = __fmaf_rn(max_sum[k][row].y, factor[k][row], sums.sum[row]);
      }
      sums.top[row] = top;
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) add(piece[k][tile], factor[k], sums.out[tile]);
    }
  }
  static WW_DEVICE void scale(float4& x, int row, float by) {
    if (row == 0) x.x *= by, x.y *= by;
    else x.z *= by, x.w *= by;
  }
  static WW_DEVICE float2 pair_of(const ptx::u32& halves) {
    return __half22float2(reinterpret_cast<const __half2&>(halves));
  }
  // What a piece without a visible key has means nothing.
  static WW_DEVICE void add(const uint2& x, const float (&factor)[2], float4& sum) {
    const float2 low = pair_of(x.x), high = pair_of(x.y);
    if (factor[0] != 0) sum.x = __fmaf_rn(low.x, factor[0], sum.x), sum.y = __fmaf_rn(low.y, factor[0], sum.y);
    if (factor[1] != 0) sum.z = __fmaf_rn(high.x, factor[1], sum.z), sum.w = __fmaf_rn(high.y, factor[1], sum.w);
  }

  // A row of the unit, and which of the sums' two it is.
  struct OutputRow {
    int local, column_tile, row;
  };
  WW_DEVICE void write(const Cut& cut, const ShortUnit<C>& unit, OutputRow at, const Sums& sums) const {
    const auto [local, column_tile, row] = at;
    const int in_head = unit.first_row + local, query = in_head / p_.group,
              head = unit.kv_head * p_.group + in_head - query * p_.group;
    const bool empty = sums.top[row] == -INFINITY;
    float top = sums.top[row], scale = empty ? 0.0f : 1.0f, all = sums.sum[row];
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
      const float4& x = sums.out[tile];
      *reinterpret_cast<ptx::u32*>(out + tile * 16) =
          C::Element::pack((row == 0 ? x.x : x.z) * scale, (row == 0 ? x.y : x.w) * scale);
    }
    if (p_.lse == nullptr || column_tile != 0 || threadIdx.x % 4 != 0) return;
    p_.lse[token * p_.num_q_heads + head] = empty ? -INFINITY : (top + ptx::log2_approx(all)) * kLn2;
  }

  const AttentionParams& p_;
  const SplitWork& work_;
  const int group_;
};

}  // namespace warpweave::cuda
