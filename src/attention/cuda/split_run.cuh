// A worker's run (DecodeWorker) as the segments that it consists of: neighbouring KV tiles of one unit (split_work.h).
// For each kind of parameters P there are, beside P: split_max_q_len(p), the most query tokens of a planned request;
// split_page_row(p, request), its row of the page table; split_first_token(p, kv_len, q_len, tile
// tokens), where its first tile begins.
#pragma once

#include "attention/cuda/split_work.h"
#include "device/cuda/ptx.h"

namespace warpweave::cuda {

struct SplitSegment {
  int page_row, unit;  // page_row: of the page table
  int q_begin, q_len, kv_len;
  int tile_begin, tile_end, num_tiles;  // of the pair (request, unit)

  WW_DEVICE bool whole() const { return tile_begin == 0 && tile_end == num_tiles; }
  // Where its piece goes: a worker has at most one that began before it and one that begins at it.
  WW_DEVICE int slot(int worker) const { return 2 * worker + (tile_begin == 0 ? 1 : 0); }
};

// What is left of a run, of tiles of so many tokens.
template <int kTileTokens>
struct SplitRunState {
  int request, unit, tile, left;
  int q_begin, q_len, kv_len;  // of the request
  int first_unit;              // the run's

  WW_DEVICE void begin(const SplitWork& work, int worker) {
    const DecodeWorker& run = work.workers[worker];
    request = run.request;
    unit = first_unit = run.head;
    tile = run.tile;
    left = run.num_tiles;
    q_begin = run.q_begin;
    q_len = run.q_len;
    kv_len = run.kv_len;
  }

  template <class P>
  WW_DEVICE int tiles_of(const P& p) const {
    const int tokens = kv_len - split_first_token(p, kv_len, q_len, kTileTokens);
    return max(1, (tokens + kTileTokens - 1) / kTileTokens);
  }

  // The next segment; false: there is none. Then advance().
  template <class P>
  WW_DEVICE bool current(const P& p, SplitSegment& s) const {
    if (!current_rows(p, s)) return false;
    s.page_row = split_page_row(p, request);
    return true;
  }
  // But for its row of the page table.
  template <class P>
  WW_DEVICE bool current_rows(const P& p, SplitSegment& s) const {
    if (left <= 0) return false;
    s = {-1, unit, q_begin, q_len, kv_len, tile, 0, tiles_of(p)};
    s.tile_end = min(s.num_tiles, tile + left);
    return true;
  }

  // Past the segment. Apart, since a request's lengths take a while to come.
  template <class P>
  WW_DEVICE void advance(const P& p, const SplitWork& work) {
    left -= tiles_of(p) - tile;
    tile = 0;
    unit += work.lockstep;
    if (unit >= work.units && left > 0) {
      unit = first_unit % work.lockstep;
      do {  // longer ones are not in the plan
        ++request;
        q_begin = p.q_indptr[request];
        q_len = p.q_indptr[request + 1] - q_begin;
      } while (q_len > split_max_q_len(p));
      kv_len = p.kv_lens[request];
    }
  }

  template <class P>
  WW_DEVICE bool next(const P& p, const SplitWork& work, SplitSegment& s) {
    if (!current(p, s)) return false;
    advance(p, work);
    return true;
  }
};

// Where threads that work together stand in a run: kept in shared memory, since their registers are few.
template <int kTileTokens>
struct SplitCursor {
  SplitRunState<kTileTokens> run;
  SplitSegment segment;  // tile_end -1: there is no more
};

// Says what the merging kernel is to do for `worker`, whose segments one thread notes in their order; the last one's
// stays.
WW_DEVICE void note_cut(const SplitWork& work, int worker, const SplitSegment& s) {
  SplitCut cut;
  if (s.tile_begin == 0 && !s.whole()) {
    cut = {s.q_begin, s.q_len, s.unit, (work.workers[worker].last_pair_end - worker) / work.lockstep + 1};
  }
  work.cuts[worker] = cut;
}

// Where the accumulators of 16 rows and 8 columns stand in a piece.
template <int kValueDim>
WW_DEVICE float4* split_piece(const SplitWork& work, int slot, int row_block, int column_block) {
  return reinterpret_cast<float4*>(work.partial_out) + static_cast<int64_t>(slot) * (work.tile_rows * kValueDim / 4) +
         (row_block * (kValueDim / 8) + column_block) * 32;
}

}  // namespace warpweave::cuda
