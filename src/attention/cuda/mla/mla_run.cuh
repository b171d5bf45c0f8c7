// A worker's run (DecodeWorker) as the segments that it consists of: neighbouring KV tiles of one row tile.
#pragma once

#include "attention/cuda/mla/mla_params.h"
#include "attention/cuda/ptx.h"

namespace warpweave::cuda {

WW_DEVICE int mla_page_row(const MlaParams& p, int request) {
  return p.page_rows != nullptr ? __ldg(p.page_rows + request) : request;
}

struct MlaSegment {
  int page_row, row_tile;  // page_row: of the page table
  int q_begin, q_len, kv_len;
  int tile_begin, tile_end, num_tiles;  // of the pair (request, row tile)

  WW_DEVICE bool whole() const { return tile_begin == 0 && tile_end == num_tiles; }
  // Where its piece goes: a worker has at most one that began before it and one that begins at it.
  WW_DEVICE int slot(int worker) const { return 2 * worker + (tile_begin == 0 ? 1 : 0); }
};

// What is left of a run.
struct MlaRunState {
  int request, row_tile, tile, left;
  int q_begin, q_len, kv_len;  // of the request
  int row_tile_of_first;

  WW_DEVICE void begin(const MlaWork& work, int worker) {
    const DecodeWorker& run = work.workers[worker];
    request = run.request;
    row_tile = row_tile_of_first = run.head;
    tile = run.tile;
    left = run.num_tiles;
    q_begin = run.q_begin;
    q_len = run.q_len;
    kv_len = run.kv_len;
  }

  // The next segment; false: there is none. Then advance().
  WW_DEVICE bool current(const MlaParams& p, MlaSegment& s) const {
    if (left <= 0) return false;
    s = {mla_page_row(p, request), row_tile, q_begin, q_len, kv_len, tile, 0, max(1, (kv_len + kDecodeTileTokens - 1) / kDecodeTileTokens)};
    s.tile_end = min(s.num_tiles, tile + left);
    return true;
  }

  // Past the segment. Apart, since a request's lengths take a while to come.
  WW_DEVICE void advance(const MlaParams& p, const MlaWork& work) {
    const int tiles = max(1, (kv_len + kDecodeTileTokens - 1) / kDecodeTileTokens) - tile;
    left -= tiles;
    tile = 0;
    row_tile += work.abreast;
    if (row_tile >= work.row_tiles && left > 0) {
      row_tile = row_tile_of_first % work.abreast;
      do {  // longer ones are not in the plan
        ++request;
        q_begin = p.q_indptr[request];
        q_len = p.q_indptr[request + 1] - q_begin;
      } while (q_len > p.max_q_len);
      kv_len = p.kv_lens[request];
    }
  }

  WW_DEVICE bool next(const MlaParams& p, const MlaWork& work, MlaSegment& s) {
    if (!current(p, s)) return false;
    advance(p, work);
    return true;
  }
};

// Where threads that work together stand in a run: kept in shared memory, since their registers are few.
struct MlaCursor {
  MlaRunState run;
  MlaSegment segment;  // tile_end -1: there is no more
};

// Says what the merging kernel is to do for `worker`, whose segments one thread notes in their order; the last one's stays.
WW_DEVICE void mla_note_cut(const MlaWork& work, int worker, const MlaSegment& s) {
  MlaCut cut;
  if (s.tile_begin == 0 && !s.whole()) {
    cut = {s.q_begin, s.q_len, s.row_tile, (work.workers[worker].last_pair_end - worker) / work.abreast + 1};
  }
  work.cuts[worker] = cut;
}

// Where the accumulators of 16 rows and 8 columns stand in a piece.
WW_DEVICE float4* mla_piece(const MlaWork& work, int slot, int row_block, int column_block) {
  return reinterpret_cast<float4*>(work.partial_out) + static_cast<int64_t>(slot) * (work.tile_rows * kMlaLatentDim / 4) +
         (row_block * (kMlaLatentDim / 8) + column_block) * 32;
}

template <MlaFormat kFormat>
WW_DEVICE float mla_kv_scale(const MlaParams& p) {
  return kFormat == MlaFormat::e4m3 && p.kv_scale != nullptr ? __ldg(p.kv_scale) : 1.0f;
}

// Where a token stands in the pool.
WW_DEVICE const char* mla_token(const MlaParams& p, int page_row, int token) {
  const int index = p.page_shift >= 0 ? token >> p.page_shift : token / p.page_size;
  const int page = __ldg(p.page_table + static_cast<int64_t>(page_row) * p.page_table_stride + index);
  return static_cast<const char*>(p.kv) + page * p.page_stride_bytes +
         (token - index * p.page_size) * p.token_stride_bytes;
}

// What a row of a request sees: tokens below `end`, and of the new tokens, where there is a tree mask, those it names.
struct MlaSight {
  int end = 0;
  int tree_begin = 1 << 30;
  const uint32_t* tree = nullptr;

  WW_DEVICE MlaSight() {}
  WW_DEVICE MlaSight(const MlaParams& p, const MlaSegment& s, int query) {
    end = p.causal && p.tree_mask == nullptr ? s.kv_len - s.q_len + query + 1 : s.kv_len;
    if (p.tree_mask == nullptr) return;
    tree_begin = s.kv_len - s.q_len;
    tree = p.tree_mask + static_cast<int64_t>(s.q_begin + query) * p.tree_mask_words;
  }
  WW_DEVICE bool sees(int token) const {
    if (token >= end) return false;
    const int node = token - tree_begin;
    return node < 0 || (__ldg(tree + node / 32) >> (node % 32) & 1) != 0;
  }
};

}  // namespace warpweave::cuda
