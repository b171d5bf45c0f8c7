// Merging of a unit's pieces by the CTA that writes the last one (SplitWork::in_place). They are added in their
// order, so the bits do not depend on who that is. Rows: as in split_combine.cuh.
#pragma once

#include "attention/cuda/split_combine.cuh"

namespace warpweave::cuda {

// Of the segment's unit, which is cut.
WW_DEVICE SplitPieces pieces_in_place(const SplitWork& work, const SplitSegment& s, int worker) {
  const DecodeWorker& run = work.workers[worker];
  const int first = s.tile_begin == 0 ? worker : __ldg(&run.first_pair_begin);
  const int last = s.tile_begin == 0 ? __ldg(&run.last_pair_end) : __ldg(&run.first_pair_end);
  return {2 * first + 1, 2 * (first + work.lockstep), 2 * work.lockstep, (last - first) / work.lockstep + 1};
}

// One thread, behind a barrier with those that have written a piece: whether all `count` are there. The last one leaves
// the counter as it was.
WW_DEVICE bool arrives_last(int32_t* counter, int count) {
  if (ptx::add_acq_rel(counter, 1) + 1 < count) return false;
  *counter = 0;
  return true;
}

struct MergedPart {
  SplitCut cut;
  SplitPieces pieces;
  int row_block, first_tile;  // of 16 rows; of 8 columns
};

// A warp: 16 rows of kTiles tiles of 8 columns.
template <int kTiles, class Rows>
WW_DEVICE void merge_in_place(const SplitWork& work, const Rows& rows, const MergedPart& part) {
  const int lane = threadIdx.x % 32, row = part.row_block * 16 + lane / 4;
  struct Piece {
    float4 sums[kTiles];
    float2 totals[2];
  };
  const auto load = [&](int i, Piece& to) {
    const int slot = part.pieces.slot(i);
    const float4* const sums = split_piece<Rows::kValueDim>(work, slot, part.row_block, part.first_tile) + lane;
#pragma unroll
    for (int k = 0; k < kTiles; ++k) to.sums[k] = __ldcg(sums + k * 32);
    const float2* const totals =
        reinterpret_cast<const float2*>(work.partial_max_sum) + static_cast<int64_t>(slot) * work.tile_rows + row;
    to.totals[0] = __ldcg(totals);
    to.totals[1] = __ldcg(totals + 8);
  };
  SplitTotal total[2];
  float4 sum[kTiles] = {};
  Piece next;
  load(0, next);
  for (int i = 0; i < part.pieces.count; ++i) {
    const Piece piece = next;
    if (i + 1 < part.pieces.count) load(i + 1, next);
    float before[2], now[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float old = total[r].maximum, own = piece.totals[r].x;
      total[r].add(piece.totals[r]);
      before[r] = old == -INFINITY ? 0.0f : ptx::exp2_approx(old - total[r].maximum);
      now[r] = own == -INFINITY ? 0.0f : ptx::exp2_approx(own - total[r].maximum);
    }
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      const float4 x = piece.sums[k];
      sum[k] = make_float4(__fmaf_rn(sum[k].x, before[0], x.x * now[0]), __fmaf_rn(sum[k].y, before[0], x.y * now[0]),
                           __fmaf_rn(sum[k].z, before[1], x.z * now[1]), __fmaf_rn(sum[k].w, before[1], x.w * now[1]));
    }
  }
  const int count = rows.rows_of(part.cut);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (row + r * 8 >= count) continue;
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      const float two[2] = {r == 0 ? sum[k].x : sum[k].z, r == 0 ? sum[k].y : sum[k].w};
      rows.write(part.cut, row + r * 8, (part.first_tile + k) * 8 + lane % 4 * 2, two, total[r]);
    }
  }
}

}  // namespace warpweave::cuda
