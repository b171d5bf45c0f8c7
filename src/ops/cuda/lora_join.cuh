// What adapters make of a GEMM's input, inside the GEMM's own kernel (stream_gemm.cu): [x, ranks] * [W, B]^T.
//
// Four warps beside those that multiply bring rows to ranks while the weights stream, share the sums with the other CTAs
// through memory, and lay what they give among the weights, as further chunks of the depth. Such a chunk holds four pieces
// of 16 ranks, each of one part of one adapter: columns of B on the weights' side, and on the inputs' side the ranks of that
// adapter's rows, scaled, with zeros in all other rows. B must be finite (GpuAdapters sees to it), else zeros times it
// would reach the rows of others.
//
// While weights stream, what else a CTA asks memory for stands in a queue of some microseconds: hence few requests one behind
// the other, and none ahead of their time (A and B asked for into the L2 as the kernel begins: 2.3 us a layer slower; but the
// first A that a CTA needs, into its registers: 0.4 us faster).
//
// A CTA waits for the sums of others: those that make them are the first in the grid, at most as many as there are
// multiprocessors, so that they run before any CTA that could only wait.
#pragma once

#include "ops/cuda/lora.cuh"

namespace warpweave::gpu {

constexpr int kJoinBarrier = 1;       // named, of the four warps
constexpr int kJoinTiles = 64;        // of rows: as many as a streamed GEMM has
constexpr int kJoinSlices = 16;       // of the depth at most: a row's sums are read where they are needed
constexpr int kJoinRanks = 32;        // summed at once
constexpr int kJoinCells = 8;         // of A, 16 bytes each, that a thread asks for at once
constexpr int kJoinPieces = 4;        // of a chunk
constexpr int kJoinKept = 2;          // pieces of a row that are read ahead
constexpr int kJoinRowBytes = 128;    // of a chunk: 64 numbers, with the 128-byte swizzle

struct LoraJoin {
  LoraArgs lora;
  const int32_t* places;  // [rows], fill_lora_tiles()
  int32_t* counters;      // [2], zeros between GEMMs: CTAs whose sums are there, CTAs that have seen them all
  int rows;
  int slice_depth;        // a multiple of kLoraSlice
  int workers;            // CTAs that bring rows to ranks
};

// The weight rows of a CTA: `boxes` runs of neighbours.
struct JoinTile {
  int boxes;
  int box_rows;
  int first;         // of the first box, among the GEMM's columns
  int apart;         // from there to the second box's
  int rank, count;   // CTAs that share the tile take turns with pieces

  WW_DEVICE bool overlaps(const LoraSiteShape& shape, int part) const {
    for (int box = 0; box < boxes; ++box) {
      const int64_t begin = first + box * apart - shape.first_column[part];
      if (begin < shape.columns[part] && begin + box_rows > 0) return true;
    }
    return false;
  }
};

// Where the adapters' chunks stand among a CTA's own: as many as there is room for in its second half, kApart of its own
// behind each, the others at the end. So weights stream on while they are laid, and they hold a stage or two of the ring at a
// time. A short GEMM is over before the sums are there.
struct JoinOrder {
  static constexpr int kApart = 4, kShortest = 32;
  int own, inside;

  WW_DEVICE JoinOrder(int own_chunks, int adapters_chunks)
      : own(own_chunks), inside(own < kShortest ? 0 : min(adapters_chunks, own / (2 * kApart))) {}
  // Of the own chunk that the first stands before; a multiple of kApart, as those of the next ones are.
  WW_DEVICE int first() const { return (own / kApart - inside) * kApart; }
  // Whether one stands before the own chunk `i`.
  WW_DEVICE bool before(int i) const { return i >= first() && i < first() + kApart * inside && i % kApart == 0; }
  // Place of an adapters' chunk among all.
  WW_DEVICE int place(int chunk) const { return chunk < inside ? first() + kApart * chunk + chunk : own + chunk; }
};

// One part of an adapter.
struct JoinPart {
  const uint16_t* expand;
  int32_t rank, first_rank;
  float scale;
};

struct LoraJoinShared {
  union {
    LoraWarpSums<kJoinRanks> of_warp;
    uint4 kept[kJoinKept][kLoraThreads];       // of each thread's row, when sums are there: keep_ranks()
  };
  JoinPart parts[kJoinTiles][kLoraParts];      // of the adapters that the batch has
  int32_t adapter_of[kJoinTiles];              // by tile: its adapter's place in `parts`, -1 for an empty tile
  int32_t pieces[kLoraParts][kJoinTiles + 1];  // before each of the adapters, of those parts that the CTA's columns have
  const uint16_t* shrink[kJoinTiles];          // of the adapters, as `parts`
  int32_t ranks[kJoinTiles];
  int num_adapters;
  int num_tiles;                               // with rows: the first ones
  int rank_blocks;                             // of kJoinRanks, of the adapter that has most
  volatile int chunks;                         // of this CTA; -1: not counted yet
  volatile int reached;                        // of those, the ones whose stages of the ring its producer has come to
};

WW_DEVICE void join_sync() { ptx::named_barrier_sync(kJoinBarrier, kLoraThreads); }

// Lists the batch's adapters and counts the chunks of this CTA. `thread`: of the four warps. What the tiles do not say
// themselves costs the GEMM time: it stands between the start of the kernel and the first sums.
WW_DEVICE void list_adapters(const LoraJoin& join, const JoinTile& tile, int thread, LoraJoinShared& shared) {
  const LoraArgs& lora = join.lora;
  const LoraTile* const own = thread < lora.num_tiles ? lora.tiles + thread : nullptr;
  const int adapters = lora.num_tiles > 0 ? lora.tiles->num_adapters : 0, tiles = lora.num_tiles > 0 ? lora.tiles->num_tiles : 0;
  const int slot = own ? own->slot : -1, adapter = own ? own->adapter : -1, first = own ? own->first : 0;
  if (thread < kJoinTiles) shared.adapter_of[thread] = adapter;
  if (first) {
    const LoraSiteWeights& weights = lora.weights(slot);
    shared.shrink[adapter] = static_cast<const uint16_t*>(weights.shrink);
    shared.ranks[adapter] = weights.ranks;
#pragma unroll
    for (int part = 0; part < kLoraParts; ++part) {
      const auto* const expand = static_cast<const uint16_t*>(weights.expand[part]);
      shared.parts[adapter][part] = {expand, weights.rank[part], weights.first_rank[part], weights.scale[part]};
      const bool there = part < lora.shape.num_parts && expand != nullptr && tile.overlaps(lora.shape, part);
      shared.pieces[part][adapter] = there ? weights.rank[part] / kLoraRankMultiple : 0;
    }
  }
  join_sync();
  if (thread < kLoraParts) {
    int sum = 0;
    for (int i = 0; i <= adapters; ++i) {
      const int pieces = i < adapters ? shared.pieces[thread][i] : 0;
      shared.pieces[thread][i] = sum;
      sum += pieces;
    }
  } else if (thread == 32) {
    int most_ranks = 0;
    for (int i = 0; i < adapters; ++i) most_ranks = max(most_ranks, shared.ranks[i]);
    shared.num_adapters = adapters;
    shared.num_tiles = tiles;
    shared.rank_blocks = (most_ranks + kJoinRanks - 1) / kJoinRanks;
  }
  join_sync();
  if (thread == 0) {
    int pieces = 0;
    for (int part = 0; part < kLoraParts; ++part) pieces += shared.pieces[part][adapters];
    const int of_cta = pieces > tile.rank ? (pieces - tile.rank + tile.count - 1) / tile.count : 0;
    shared.chunks = (of_cta + kJoinPieces - 1) / kJoinPieces;
  }
  join_sync();
}

// A slice of the depth of a tile's rows, up to kJoinRanks ranks. Counted by what the batch's adapters have: a server may take
// larger ones, and CTAs would then have nothing to do while others do all.
struct JoinItem {
  int tile = -1;  // -1: the CTA has no more
  int slice = 0, first_rank = 0, ranks = 0;
  const uint16_t* a = nullptr;  // of first_rank
  int rows[2] = {};             // of this thread
};
WW_DEVICE JoinItem read_item(const LoraJoin& join, const LoraJoinShared& shared, int item, int thread) {
  JoinItem out;
  if (item >= shared.num_tiles * shared.rank_blocks * join.lora.slices) return out;
  out.first_rank = item % shared.rank_blocks * kJoinRanks;
  out.slice = item / shared.rank_blocks % join.lora.slices;
  out.tile = item / shared.rank_blocks / join.lora.slices;
  const LoraTile& tile = join.lora.tiles[out.tile];
  const int adapter = shared.adapter_of[out.tile];
  out.rows[0] = tile.rows[thread % 32 / 4];
  out.rows[1] = tile.rows[thread % 32 / 4 + 8];
  out.ranks = min(shared.ranks[adapter] - out.first_rank, kJoinRanks);
  out.a = shared.shrink[adapter] + out.first_rank * join.lora.in_features;
  return out;
}

// A of an item, as much as a thread asks for at once: 8 * kOf ranks of kJoinCells / kOf steps of the depth.
struct JoinMatrix {
  uint4 of_ranks[kJoinCells];
};
template <int kOf>
WW_DEVICE int first_depth(const LoraJoin& join, const JoinItem& item, int thread) {
  return item.slice * join.slice_depth + thread / 32 * kJoinCells / kOf * kLoraStep;
}
template <int kOf>
WW_DEVICE void read_matrix(const LoraJoin& join, const JoinItem& item, int begin, int thread, JoinMatrix& out) {
  const int lane = thread % 32, depth = static_cast<int>(join.lora.in_features);
  const auto* const a = item.a + lane / 4 * depth;
#pragma unroll
  for (int i = 0; i < kJoinCells; ++i) {
    const int k = begin + i / kOf * kLoraStep + lane % 4 * 8, block = i % kOf;
    out.of_ranks[i] = uint4{0, 0, 0, 0};
    if (block * 8 < item.ranks && k < depth) out.of_ranks[i] = *reinterpret_cast<const uint4*>(a + block * 8 * depth + k);
  }
}

// sum += the item's rows times its ranks. `a`: of first_depth().
template <class E, int kOf, int kBlocks>
WW_DEVICE void sum_depth(const LoraJoin& join, const JoinItem& item, int thread, JoinMatrix& a, float (&sum)[kBlocks][4]) {
  constexpr int kSteps = kJoinCells / kOf;
  const int lane = thread % 32, depth = static_cast<int>(join.lora.in_features);
  const int end = min(depth, (item.slice + 1) * join.slice_depth);
  const auto* const x = static_cast<const uint16_t*>(join.lora.x);
  for (int begin = first_depth<kOf>(join, item, thread);;) {
    uint4 of_rows[kSteps][2];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int k = begin + step * kLoraStep + lane % 4 * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        of_rows[step][half] = uint4{0, 0, 0, 0};
        if (item.rows[half] >= 0 && k < depth) of_rows[step][half] = *reinterpret_cast<const uint4*>(x + static_cast<int64_t>(item.rows[half]) * depth + k);
      }
    }
#pragma unroll
    for (int i = 0; i < kJoinCells; ++i) {
      const uint4 low = of_rows[i / kOf][0], high = of_rows[i / kOf][1], ranks = a.of_ranks[i];
      const ptx::u32 first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
      if (i % kOf * 8 >= item.ranks) continue;
      E::mma(sum[i % kOf], first, ranks.x, ranks.y);
      E::mma(sum[i % kOf], second, ranks.z, ranks.w);
    }
    begin += kLoraWarps * kSteps * kLoraStep;
    if (begin >= end) return;
    read_matrix<kOf>(join, item, begin, thread, a);
  }
}

constexpr int kFewBlocks = kLoraRankMultiple / 8, kAllBlocks = kJoinRanks / 8;
WW_DEVICE bool has_few_ranks(const JoinItem& item) { return item.ranks <= kLoraRankMultiple; }

// The first cells of an item.
WW_DEVICE void begin_item(const LoraJoin& join, const JoinItem& item, int thread, JoinMatrix& out) {
  if (has_few_ranks(item)) {
    read_matrix<kFewBlocks>(join, item, first_depth<kFewBlocks>(join, item, thread), thread, out);
  } else {
    read_matrix<kAllBlocks>(join, item, first_depth<kAllBlocks>(join, item, thread), thread, out);
  }
}

template <class E>
WW_DEVICE void sum_item(const LoraJoin& join, const JoinItem& item, int thread, JoinMatrix& a, LoraJoinShared& shared) {
  constexpr int kOfThread = kLoraTileRows * kJoinRanks / kLoraThreads;
  if (item.ranks <= 0) return;
  const LoraArgs& lora = join.lora;
  const int warp = thread / 32, lane = thread % 32;
  float sum[kAllBlocks][4] = {};
  if (has_few_ranks(item)) {
    sum_depth<E, kFewBlocks>(join, item, thread, a, sum);
  } else {
    sum_depth<E, kAllBlocks>(join, item, thread, a, sum);
  }
  join_sync();  // the item before was read
  add_warps(sum, warp, lane, shared.of_warp, [] { join_sync(); });
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const int at = i * kLoraThreads + thread, row = at / kJoinRanks, rank = at % kJoinRanks;
    if (rank >= item.ranks) continue;
    lora.sums_of(item.slice, item.tile, row)[item.first_rank + rank] = shared.of_warp[0][row][rank] + shared.of_warp[1][row][rank];
  }
}

// This CTA's share of the sums, and word that they are there. Waits for the kernel that makes the rows; the first A is asked
// for before that.
template <class E>
WW_DEVICE void make_sums(const LoraJoin& join, int cta, int thread, LoraJoinShared& shared) {
  JoinItem item;
  if (cta < join.workers) item = read_item(join, shared, cta, thread);
  JoinMatrix a;
  begin_item(join, item, thread, a);
  ptx::grid_dependency_wait();
  if (cta >= join.workers) return;
  for (int number = cta; item.tile >= 0;) {
    sum_item<E>(join, item, thread, a, shared);
    number += join.workers;
    item = read_item(join, shared, number, thread);
    begin_item(join, item, thread, a);
  }
  join_sync();
  if (thread == 0) ptx::add_acq_rel(join.counters, 1);
}

// Until all sums are there. The last of `ctas` that asks sets the counters back.
WW_DEVICE void await_sums(const LoraJoin& join, int ctas, int thread) {
  if (thread == 0) {
    while (ptx::load_acquire(join.counters) != join.workers) {
    }
  }
  join_sync();
  // Nobody waits for this.
  if (thread == kLoraThreads - 1 && ptx::add_acq_rel(join.counters + 1, 1) == ctas - 1) join.counters[0] = join.counters[1] = 0;
}

// The columns of B that a piece has of a CTA.
struct JoinPiece {
  const uint16_t* b = nullptr;  // of the first column's 16 ranks
  int rank = 0;                 // from column to column
  int first = 0;                // column of the part that is the GEMM's first
  int columns = 0;              // of the part; 0: no piece
};

WW_DEVICE JoinPiece find_piece(const LoraJoin& join, const LoraJoinShared& shared, const JoinTile& tile, int chunk, int place) {
  int piece = (chunk * kJoinPieces + place) * tile.count + tile.rank;
  for (int part = 0; part < kLoraParts; ++part) {
    const int32_t* const before = shared.pieces[part];
    const int of_part = before[shared.num_adapters];
    if (piece >= of_part) {
      piece -= of_part;
      continue;
    }
    int adapter = 0;
    while (before[adapter + 1] <= piece) ++adapter;
    const JoinPart& from = shared.parts[adapter][part];
    return {from.expand + (piece - before[adapter]) * kLoraRankMultiple, from.rank,
            -static_cast<int>(join.lora.shape.first_column[part]), static_cast<int>(join.lora.shape.columns[part])};
  }
  return {};
}

// Calls run(row of the boxes, source or null) for this thread's rows of a piece; eight threads have a row.
template <typename Run>
WW_DEVICE void each_row(const JoinTile& tile, const JoinPiece& piece, int thread, const Run& run) {
  for (int box = 0; box < tile.boxes; ++box) {
    const int first = tile.first + box * tile.apart + piece.first;
#pragma unroll 2
    for (int row = thread / 8; row < tile.box_rows; row += kLoraThreads / 8) {
      const int column = first + row;
      const bool inside = column >= 0 && column < piece.columns;
      run(box * tile.box_rows + row, inside ? piece.b + static_cast<int64_t>(column) * piece.rank + thread % 2 * 8 : nullptr);
    }
  }
}

// A chunk on the weights' side, at `smem`: its copies are the caller's to wait for.
WW_DEVICE void lay_weights(const LoraJoin& join, const JoinTile& tile, const JoinPiece& piece, int thread, ptx::u32 smem) {
  const int place = thread % 8;
  each_row(tile, piece, thread, [&](int row, const uint16_t* from) {
    const bool there = from != nullptr;
    ptx::cp_async_16(smem + row * kJoinRowBytes + (place ^ (row & 7)) * 16, there ? from : join.lora.x, there ? 16 : 0);
  });
}

// The row of a thread on the inputs' side, and which 8 of 16 ranks.
struct JoinRow {
  int row, half;
  int place = -1;    // in the tiles
  int adapter = -1;  // its place in LoraJoinShared::parts

  WW_DEVICE JoinRow(const LoraJoin& join, const LoraJoinShared& shared, int thread) : row(thread / 2), half(thread % 2) {
    if (row < join.rows) place = join.places[row];
    if (place >= 0) adapter = shared.adapter_of[place / kLoraTileRows];
  }
};

// 8 of a row's ranks, scaled.
template <class E>
WW_DEVICE uint4 read_ranks(const LoraJoin& join, const JoinRow& row, const JoinPart& part, int first) {
  const LoraArgs& lora = join.lora;
  const int64_t stride = static_cast<int64_t>(lora.num_tiles) * kLoraTileRows * lora.max_ranks;
  const float* from = lora.sums_of(0, row.place / kLoraTileRows, row.place % kLoraTileRows) + part.first_rank + first + row.half * 8;
  float sum[8] = {};
#pragma unroll 8
  for (int slice = 0; slice < lora.slices; ++slice, from += stride) {
    const float4 low = *reinterpret_cast<const float4*>(from), high = *reinterpret_cast<const float4*>(from + 4);
    const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += values[i];
  }
  return {E::pack(part.scale * sum[0], part.scale * sum[1]), E::pack(part.scale * sum[2], part.scale * sum[3]),
          E::pack(part.scale * sum[4], part.scale * sum[5]), E::pack(part.scale * sum[6], part.scale * sum[7])};
}

// Calls run(its number, JoinPart, first rank, turn) for the pieces of a row that fall to this CTA; a turn is a place among all
// of the CTA's.
template <typename Run>
WW_DEVICE void each_piece(const LoraJoinShared& shared, const JoinTile& tile, const JoinRow& row, const Run& run) {
  if (row.adapter < 0) return;
  int base = 0, number = 0;
  for (int part = 0; part < kLoraParts; ++part) {
    const int32_t* const before = shared.pieces[part];
    const int first = base + before[row.adapter], end = base + before[row.adapter + 1];
    for (int piece = first; piece < end; ++piece) {
      if (piece % tile.count != tile.rank) continue;
      run(number++, shared.parts[row.adapter][part], (piece - first) * kLoraRankMultiple, piece / tile.count);
    }
    base += before[shared.num_adapters];
  }
}

// Reads the first pieces of the thread's row, while the GEMM's own chunks are still under way.
template <class E>
WW_DEVICE void keep_ranks(const LoraJoin& join, LoraJoinShared& shared, const JoinTile& tile, const JoinRow& row, int thread) {
  each_piece(shared, tile, row, [&](int number, const JoinPart& part, int first, int) {
    if (number < kJoinKept) shared.kept[number][thread] = read_ranks<E>(join, row, part, first);
  });
}

// A chunk on the inputs' side, of kJoinTiles rows, at `memory`; of it the row of one thread.
struct JoinChunk {
  int thread;
  int index;
  char* memory;
};
template <class E>
WW_DEVICE void lay_ranks(const LoraJoin& join, const LoraJoinShared& shared, const JoinTile& tile, const JoinRow& row, JoinChunk out) {
  const auto cell = [&](int piece) -> uint4& {
    const int place = (piece * 2 + row.half) ^ (row.row & 7);
    return *reinterpret_cast<uint4*>(out.memory + row.row * kJoinRowBytes + place * 16);
  };
#pragma unroll
  for (int piece = 0; piece < kJoinPieces; ++piece) cell(piece) = uint4{0, 0, 0, 0};
  each_piece(shared, tile, row, [&](int number, const JoinPart& part, int first, int turn) {
    if (turn / kJoinPieces != out.index) return;
    cell(turn % kJoinPieces) = number < kJoinKept ? shared.kept[number][out.thread] : read_ranks<E>(join, row, part, first);
  });
}

}  // namespace warpweave::gpu
