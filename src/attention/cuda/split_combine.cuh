// Merges the pieces of cut units (SplitWork) by their log-sum-exps, and writes the rows. Every CTA lists the cut units,
// and takes in turn a part of one: 16 rows and so many columns that there is a part for each CTA. Where a part has
// fewer columns than a CTA has warps, several share the pieces of each; the sums are added in an order that depends on
// the cuts alone. Rows says what a unit's rows are: kValueDim, the columns of O; most_rows(), of any unit;
// rows_of(cut), their number; write(cut, row, column, sum, total), two columns of one.
#pragma once

#include "attention/cuda/split_run.cuh"

namespace warpweave::cuda {

inline constexpr int kCombineThreads = 256;
inline constexpr int kCombineWarps = kCombineThreads / 32;
inline constexpr int kLeastCombineTiles = 2;  // of 8 columns, of a part
inline constexpr int kMaxSplitWorkers = 512;
inline constexpr int kPiecesAhead = 4;        // whose sums are on their way while the maxima are found

// The pieces of a unit: slots first, then `second`, second + step, ...
struct SplitPieces {
  int first, second, step, count;
  WW_DEVICE int slot(int i) const { return i == 0 ? first : second + (i - 1) * step; }
};

struct SplitTotal {
  float maximum = -INFINITY, sum = 0;
  WW_DEVICE void add(float2 part) {  // (maximum, sum), as max_sum has it
    const float next = fmaxf(maximum, part.x);
    if (next == -INFINITY) return;
    sum = sum * ptx::exp2_approx(maximum - next) + part.y * ptx::exp2_approx(part.x - next);
    maximum = next;
  }
};

struct CombineShared {
  int counts[kCombineWarps];
  SplitCut cuts[kMaxSplitWorkers];
  uint16_t workers[kMaxSplitWorkers];       // at which these begin
  float2 totals[kCombineThreads / 16][16];  // (maximum, sum) of a row's share of the pieces
  float4 sums[kCombineWarps][32];
};

template <class Rows>
class SplitCombine {
 public:
  WW_DEVICE SplitCombine(const SplitWork& work, const Rows& rows, CombineShared& shared)
      : work_(work), rows_(rows), shared_(shared) {}

  // `cta` of `ctas`.
  WW_DEVICE void run(int cta, int ctas) {
    const int row_blocks = (rows_.most_rows() + 15) / 16, blocks = list_cuts() * row_blocks;
    int parts = 1;  // of a block
    while (parts * 2 * kLeastCombineTiles * 8 <= Rows::kValueDim && blocks * parts * 2 <= ctas) parts *= 2;
    for (int i = cta; i < blocks * parts; i += ctas) {
      const int block = i / parts;
      merge({block / row_blocks, block % row_blocks, i % parts, Rows::kValueDim / 8 / parts});
    }
  }

 private:
  // In the same order in every CTA.
  WW_DEVICE int list_cuts() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int listed = 0;
    for (int begin = 0; begin < work_.num_workers; begin += kCombineThreads) {
      const int worker = begin + static_cast<int>(threadIdx.x);
      SplitCut cut;
      if (worker < work_.num_workers) cut = work_.cuts[worker];
      const unsigned votes = __ballot_sync(~0u, cut.pieces > 0);
      if (lane == 0) shared_.counts[warp] = __popc(votes);
      __syncthreads();
      int before = listed + __popc(votes & ((1u << lane) - 1));
      for (int w = 0; w < kCombineWarps; ++w) {
        if (w < warp) before += shared_.counts[w];
        listed += shared_.counts[w];
      }
      if (cut.pieces > 0) {
        shared_.cuts[before] = cut;
        shared_.workers[before] = static_cast<uint16_t>(worker);
      }
      __syncthreads();
    }
    return listed;
  }

  struct Part {
    int cut, row_block, index, tiles;  // tiles: of 8 columns, a power of two
  };
  // What a lane holds of some pieces: their sums, and the maxima of its two rows.
  struct Ahead {
    float4 sums[kPiecesAhead];
    float maxima[kPiecesAhead][2];
  };
  struct Share {
    int index, count;
  };

  WW_DEVICE void merge(const Part& part) {
    const SplitCut cut = shared_.cuts[part.cut];
    const int worker = shared_.workers[part.cut], count = rows_.rows_of(cut);
    if (part.row_block * 16 >= count) return;
    const SplitPieces pieces = {2 * worker + 1, 2 * (worker + work_.lockstep), 2 * work_.lockstep, cut.pieces};
    const int warp = threadIdx.x / 32, at_once = min(part.tiles, kCombineWarps);
    const Share share = {warp / at_once, kCombineWarps / at_once};
    const int first_tile = part.index * part.tiles + warp % at_once;
    Ahead ahead;
    load(pieces, part.row_block, first_tile, share, ahead);
    find_totals(pieces, part.row_block);
    for (int tile = 0; tile < part.tiles; tile += at_once) {
      const int column_tile = first_tile + tile;
      Ahead now = ahead;  // while those of the next columns are on their way
      if (tile + at_once < part.tiles) load(pieces, part.row_block, column_tile + at_once, share, ahead);
      float4 sum = sum_of(pieces, part.row_block, column_tile, share, now);
      if (share.count > 1) sum = add_shares(sum, at_once);
      if (share.index == 0) write(cut, part.row_block, column_tile, sum);
    }
    __syncthreads();
  }

  // Of warps of the same columns; the first one gets the sum.
  WW_DEVICE float4 add_shares(float4 sum, int at_once) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    shared_.sums[warp][lane] = sum;
    __syncthreads();
    for (int other = warp + at_once; other < kCombineWarps; other += at_once) {
      const float4 x = shared_.sums[other][lane];
      sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
    }
    return sum;
  }

  WW_DEVICE void write(const SplitCut& cut, int row_block, int column_tile, const float4& sum) {
    const int lane = threadIdx.x % 32, count = rows_.rows_of(cut);
    const float sums[2][2] = {{sum.x, sum.y}, {sum.z, sum.w}};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int in_block = lane / 4 + i * 8, row = row_block * 16 + in_block;
      if (row < count) rows_.write(cut, row, column_tile * 8 + lane % 4 * 2, sums[i], total_of(in_block));
    }
  }

  // Of the block's 16 rows, into totals[0].
  WW_DEVICE void find_totals(const SplitPieces& pieces, int row_block) {
    constexpr int kShares = kCombineThreads / 16;
    const int row = threadIdx.x % 16, share = threadIdx.x / 16;
    SplitTotal total;
    for (int i = share; i < pieces.count; i += kShares) total.add(max_sum(pieces.slot(i), row_block * 16 + row));
    shared_.totals[share][row] = make_float2(total.maximum, total.sum);
    __syncthreads();
    if (share == 0) {
      for (int i = 1; i < min(kShares, pieces.count); ++i) total.add(shared_.totals[i][row]);
      shared_.totals[0][row] = make_float2(total.maximum, total.sum);
    }
    __syncthreads();
  }
  WW_DEVICE SplitTotal total_of(int row) const { return {shared_.totals[0][row].x, shared_.totals[0][row].y}; }

  WW_DEVICE float2 max_sum(int slot, int row) const {
    return __ldcg(reinterpret_cast<const float2*>(work_.partial_max_sum) +
                  static_cast<int64_t>(slot) * work_.tile_rows + row);
  }

  // Pieces from.index, from.index + from.count, ...; past the last: nothing.
  WW_DEVICE void load(const SplitPieces& pieces, int row_block, int column_tile, const Share& from, Ahead& out) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < kPiecesAhead; ++k) {
      const int i = from.index + k * from.count;
      out.maxima[k][0] = out.maxima[k][1] = -INFINITY;
      out.sums[k] = make_float4(0, 0, 0, 0);
      if (i >= pieces.count) continue;
      const int slot = pieces.slot(i);
      out.sums[k] = __ldcg(split_piece<Rows::kValueDim>(work_, slot, row_block, column_tile) + lane);
#pragma unroll
      for (int row = 0; row < 2; ++row) out.maxima[k][row] = max_sum(slot, row_block * 16 + lane / 4 + row * 8).x;
    }
  }

  // `ahead`: the share's first pieces.
  WW_DEVICE float4 sum_of(const SplitPieces& pieces, int row_block, int column_tile, const Share& share,
                          Ahead& ahead) const {
    const int lane = threadIdx.x % 32;
    const float tops[2] = {shared_.totals[0][lane / 4].x, shared_.totals[0][lane / 4 + 8].x};
    float4 sum = make_float4(0, 0, 0, 0);
    for (int first = share.index; first < pieces.count; first += kPiecesAhead * share.count) {
      if (first > share.index) load(pieces, row_block, column_tile, {first, share.count}, ahead);
#pragma unroll
      for (int k = 0; k < kPiecesAhead; ++k) {
        float factor[2];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float maximum = ahead.maxima[k][row];
          factor[row] = maximum == -INFINITY ? 0.0f : ptx::exp2_approx(maximum - tops[row]);
        }
        const float4 x = ahead.sums[k];
        sum = make_float4(__fmaf_rn(x.x, factor[0], sum.x), __fmaf_rn(x.y, factor[0], sum.y),
                          __fmaf_rn(x.z, factor[1], sum.z), __fmaf_rn(x.w, factor[1], sum.w));
      }
    }
    return sum;
  }

  const SplitWork& work_;
  const Rows& rows_;
  CombineShared& shared_;
};

}  // namespace warpweave::cuda
