// Merging of a unit's pieces by the CTAs that have written them, in one of two ways:
// - The CTA that writes the last piece merges all (merge_in_place), for units in about two pieces.
// - Each CTA, when it is done with its run, waits for the others' pieces of the units that it cuts, and merges a share
//   of each (SplitMerge), for requests of one unit of up to 16 rows in many pieces. All workers must run at once, so
//   there may be no more of them than multiprocessors.
// The order of sums depends on the cuts alone. Rows: as in split_combine.cuh.
#pragma once

#include "attention/cuda/split_combine.cuh"

namespace warpweave::cuda {

// A unit that is cut, as one of its workers sees it.
struct SplitCutUnit {
  SplitCut cut;
  int first = 0;     // of its workers, which are `lockstep` apart
  int distance = 0;  // of this worker from the first
  int rows = 0;

  WW_DEVICE SplitPieces pieces(int lockstep) const {
    return {2 * first + 1, 2 * (first + lockstep), 2 * lockstep, cut.pieces};
  }
  // Counts the pieces that the warpgroups with this half of the columns have written since the plan was made.
  WW_DEVICE int32_t* arrivals(const SplitWork& work, int half) const { return work.arrivals + 2 * first + half; }
};

// The units that a worker's run cuts: at most one that began before it and one that goes on behind it.
struct SplitCuts {
  int first_pair_begin = 0, first_pair_end = 0, last_pair_end = 0;  // DecodeWorker's
  int count = 0;
  SplitCutUnit units[2];

  WW_DEVICE void begin(const SplitWork& work, int worker) {
    const DecodeWorker& run = work.workers[worker];
    first_pair_begin = run.first_pair_begin;
    first_pair_end = run.first_pair_end;
    last_pair_end = run.last_pair_end;
    count = 0;
  }
  // The segment's unit, which is cut and has `rows` rows.
  WW_DEVICE void add(const SplitSegment& s, int worker, int lockstep, int rows) {
    SplitCutUnit& unit = units[count++];
    unit.first = s.tile_begin == 0 ? worker : first_pair_begin;
    const int last = s.tile_begin == 0 ? last_pair_end : first_pair_end;
    unit.cut = {s.q_begin, s.q_len, s.unit, (last - unit.first) / lockstep + 1};
    unit.distance = worker - unit.first;
    unit.rows = rows;
  }
};

// Shared memory of a warpgroup that merges shares, by address.
struct MergeMemory {
  static constexpr int kMostPieces = 144;  // of a unit
  static constexpr int kRows = 16;
  // (maximum, sum) of 16 rows, and what keeps neighbouring pieces' in other banks.
  static constexpr int kPieceBytes = kRows * 8 + 16;
  static constexpr int kTileBytes = 512 * kMostPieces, kTotalsBytes = kPieceBytes * kMostPieces;
  ptx::u32 tiles, totals, row_totals;  // kTileBytes; kTotalsBytes; 8 a row
};

// A warpgroup waits for the pieces of a unit of up to 16 rows and merges its CTA's share of the kTiles tiles of 8
// columns from first_tile on. Workers of a unit are neighbours (lockstep 1). Everything is asked for at once. Loops are
// kept rolled: code that runs once a kernel is fetched as it runs, which takes longer than its execution
// (docs/gpu-tuning.md).
template <int kTiles, class Rows>
class SplitMerge {
 public:
  // `barrier`: a named one, of the warpgroup.
  WW_DEVICE SplitMerge(const SplitWork& work, const Rows& rows, const MergeMemory& memory, int barrier)
      : work_(work), rows_(rows), memory_(memory), barrier_(barrier) {}

  // Every launch adds the number of pieces to their counter.
  WW_DEVICE void await(const int32_t* arrivals, int pieces) const {
    if (thread() == 0) {
      while (ptx::load_acquire(arrivals) % pieces != 0) {}
    }
    meet();
  }

  WW_DEVICE void run(const SplitCutUnit& unit, int first_tile) const {
    const int each = (kTiles + unit.cut.pieces - 1) / unit.cut.pieces, begin = unit.distance * each;
    if (begin >= kTiles) return;
    const Share share = {first_tile + begin, min(each, kTiles - begin)};
    ask_for(unit, share);
    ptx::cp_async_wait<0>();
    meet();
    find_factors(unit);
    meet();
    add(unit, share);
    meet();
  }

 private:
  // No more tiles, of all pieces together, than MergeMemory::kMostPieces or 2 kTiles.
  struct Share {
    int first, count;  // tiles
  };
  static_assert(2 * kTiles <= MergeMemory::kMostPieces);

  static WW_DEVICE int thread() { return static_cast<int>(threadIdx.x) % 128; }
  static WW_DEVICE int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static WW_DEVICE int warp() { return thread() / 32; }
  WW_DEVICE void meet() const { ptx::named_barrier_sync(barrier_, 128); }
  WW_DEVICE ptx::u32 tile_at(int i) const { return memory_.tiles + i * 512 + lane() * 16; }
  // A row's maximum and sum; the factor takes the maximum's place.
  WW_DEVICE ptx::u32 total_at(int piece, int row) const {
    return memory_.totals + piece * MergeMemory::kPieceBytes + row * 8;
  }

  WW_DEVICE void ask_for(const SplitCutUnit& unit, const Share& share) const {
    const SplitPieces pieces = unit.pieces(work_.lockstep);
    int piece = 0, in_piece = warp();
#pragma unroll 1
    for (int i = warp(); i < pieces.count * share.count; i += 4, in_piece += 4) {
      for (; in_piece >= share.count; in_piece -= share.count) ++piece;
      const float4* const from =
          split_piece<Rows::kValueDim>(work_, pieces.slot(piece), 0, share.first + in_piece);
      ptx::cp_async_16(tile_at(i), from + lane(), 16);
    }
    constexpr int kCopies = MergeMemory::kRows / 2;  // of a piece, two rows' totals each
#pragma unroll 1
    for (int i = thread(); i < pieces.count * kCopies; i += 128) {
      const int row = i % kCopies * 2;
      const float* const from =
          work_.partial_max_sum + (static_cast<int64_t>(pieces.slot(i / kCopies)) * work_.tile_rows + row) * 2;
      ptx::cp_async_16(total_at(i / kCopies, row), from, 16);
    }
    ptx::cp_async_commit();
  }

  // Eight lanes a row.
  WW_DEVICE void find_factors(const SplitCutUnit& unit) const {
    const int row = thread() / 8, own = thread() % 8;
    float maximum = -INFINITY, sum = 0;
#pragma unroll 1
    for (int piece = own; piece < unit.cut.pieces; piece += 8) {
      maximum = fmaxf(maximum, __uint_as_float(ptx::load_shared_4(total_at(piece, row))));
    }
#pragma unroll 1
    for (int step = 1; step < 8; step *= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, step));
#pragma unroll 1
    for (int piece = own; piece < unit.cut.pieces; piece += 8) {
      const uint2 total = ptx::load_shared_8(total_at(piece, row));
      const float top = __uint_as_float(total.x);
      const float factor = top == -INFINITY ? 0.0f : ptx::exp2_approx(top - maximum);
      sum += factor * __uint_as_float(total.y);
      ptx::store_shared_4(total_at(piece, row), __float_as_uint(factor));
    }
#pragma unroll 1
    for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (own == 0) ptx::store_shared_8(memory_.row_totals + row * 8, __float_as_uint(maximum), __float_as_uint(sum));
  }

  // A warp has a tile at a time, or of fewer tiles than there are warps every second or fourth of a tile's pieces.
  WW_DEVICE void add(const SplitCutUnit& unit, const Share& share) const {
    const int shift = share.count == 1 ? 2 : share.count == 2 ? 1 : 0, helpers = 1 << shift;
    const int first_piece = warp() & (helpers - 1);
#pragma unroll 1
    for (int i = warp() >> shift; i < share.count; i += 4 >> shift) {
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 2
      for (int piece = first_piece; piece < unit.cut.pieces; piece += helpers) {
        add_scaled(sum, piece * share.count + i, piece);
      }
      if (helpers > 1) {
        add_helpers(sum, first_piece * share.count + i, helpers, share.count);
        if (first_piece > 0) return;
      }
      write(unit, sum, share.first + i);
    }
  }
  WW_DEVICE void add_scaled(float4& sum, int tile, int piece) const {
    const int row = lane() / 4;
    const float4 x = load_tile(tile);
    const float low = __uint_as_float(ptx::load_shared_4(total_at(piece, row)));
    const float high = __uint_as_float(ptx::load_shared_4(total_at(piece, row + 8)));
    sum = make_float4(__fmaf_rn(x.x, low, sum.x), __fmaf_rn(x.y, low, sum.y), __fmaf_rn(x.z, high, sum.z),
                      __fmaf_rn(x.w, high, sum.w));
  }
  // Sums of a tile's pieces by several warps, handed over where each has read its first one, which are `step` apart.
  WW_DEVICE void add_helpers(float4& sum, int own, int helpers, int step) const {
    ptx::store_shared_8(tile_at(own), __float_as_uint(sum.x), __float_as_uint(sum.y));
    ptx::store_shared_8(tile_at(own) + 8, __float_as_uint(sum.z), __float_as_uint(sum.w));
    meet();
#pragma unroll 1
    for (int i = 1; i < helpers; ++i) {
      const float4 x = load_tile(own + i * step);
      sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
    }
  }
  WW_DEVICE float4 load_tile(int i) const {
    ptx::u32 x[4];
    ptx::load_shared_16(x, tile_at(i));
    return make_float4(__uint_as_float(x[0]), __uint_as_float(x[1]), __uint_as_float(x[2]), __uint_as_float(x[3]));
  }
  WW_DEVICE void write(const SplitCutUnit& unit, const float4& sum, int tile) const {
#pragma unroll 1
    for (int row = lane() / 4; row < unit.rows; row += 8) {
      const bool low = row < 8;
      const float two[2] = {low ? sum.x : sum.z, low ? sum.y : sum.w};
      const uint2 total = ptx::load_shared_8(memory_.row_totals + row * 8);
      rows_.write(unit.cut, row, tile * 8 + lane() % 4 * 2, two, {__uint_as_float(total.x), __uint_as_float(total.y)});
    }
  }

  const SplitWork& work_;
  const Rows& rows_;
  const MergeMemory memory_;
  const int barrier_;
};

// One thread, behind a barrier with those that have written a piece: whether all `count` are there. Every launch
// adds their number to the counter.
WW_DEVICE bool arrives_last(int32_t* counter, int count) { return (ptx::add_acq_rel(counter, 1) + 1) % count == 0; }

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
