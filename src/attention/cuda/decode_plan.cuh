// The plan of split-KV decode (DecodeWorker), by one CTA. For plan.cu, and for its test, which runs it on the host.
#pragma once

#include "attention/cuda/block_scan.cuh"
#include "attention/cuda/plan_input.h"
#include "attention/cuda/weighed_cuts.cuh"

namespace warpweave::cuda {
namespace {

__device__ int decode_tiles(const PlanInput& in, int request) {
  const int q_len = in.q_indptr[request + 1] - in.q_indptr[request];
  if (q_len > in.decode_q_len) return 0;
  const int kv_len = in.kv_lens[request];
  int first = first_visible(kv_len, q_len, in.window_left);
  if (in.whole_tiles) first = first / in.tile_tokens * in.tile_tokens;
  const int visible = kv_len - first;
  return max(1, (visible + in.tile_tokens - 1) / in.tile_tokens);
}

// Into how many runs to cut `total` tiles. A piece has more than a few tiles, or merging would cost more than the
// split gains. Pairs of one length are cut at their ends, or into equal pieces, if that leaves few workers idle.
constexpr int kMinPieceTiles = 4;
// Runs of so many tiles and more go to all workers, wherever that cuts pairs.
constexpr int kLongRunTiles = 96;

struct PairLengths {
  long long pairs;
  int shortest, longest;  // in tiles
};

__device__ long long count_runs(long long total, const PairLengths& of, int num_workers, bool cut_long_pairs) {
  const auto [pairs, shortest, longest] = of;
  const long long runs = min(static_cast<long long>(num_workers), (total + kMinPieceTiles - 1) / kMinPieceTiles);
  if (shortest != longest || (cut_long_pairs && total >= runs * kLongRunTiles)) return runs;
  if (pairs >= runs) {
    if (total >= runs * kLongRunTiles) return runs;
    for (long long fewer = runs; fewer > runs - runs / 16; --fewer) {
      if (pairs % fewer == 0) return fewer;
    }
    return runs;
  }
  const long long piece = (longest + runs / pairs - 1) / (runs / pairs);
  return pairs * ((longest + piece - 1) / piece);
}

// The line of `total` tiles cut into `runs`: of one length (earlier ones have the tile more, since a pair's last tiles
// are the newest tokens', which take longer), or, where there are `begins`, at these; an empty run's is the next one's.
struct Cut {
  long long total;
  int runs;
  const long long* begins = nullptr;

  __device__ long long begin(int run) const {
    if (run == runs) return total;
    return begins == nullptr ? (run * total + runs - 1) / runs : begins[run];
  }
  __device__ int run_of(long long tile) const {
    if (begins == nullptr) return static_cast<int>(tile * runs / total);
    int low = 0, high = runs - 1;  // the last run that begins at `tile` or before
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (begins[middle] <= tile) low = middle; else high = middle - 1;
    }
    return low;
  }
};

// As many requests as threads, scanned: a request's tiles of one head, and where they end among those of all requests.
struct Chunk {
  int first_request, num_requests, heads;
  const int* counts;
  const long long* ends;
  long long before;  // tiles of one head in the chunks before

  __device__ long long begin_of(int r) const { return (before + ends[r] - counts[r]) * heads; }
  // The first request whose end lies past `tile`.
  __device__ int find(long long tile) const {
    return first_past(num_requests, [&](int r) { return (before + ends[r]) * heads > tile; });
  }
};

// In shared memory.
struct ScannedChunk {
  int* counts;
  long long* ends;
  int* pair_ends;  // how many requests are planned
  long long* warp_sums;
};
// All threads, which others' values are there for behind the next __syncthreads().
__device__ void scan_chunk(const PlanInput& in, int chunk, const ScannedChunk& to) {
  const int request = chunk * kPlanThreads + threadIdx.x;
  const int tiles = request < in.num_requests ? decode_tiles(in, request) : 0;
  // How many requests are planned stands above their tiles.
  constexpr int kPlannedBit = 40;
  const long long sums = block_inclusive_scan(tiles + (tiles > 0 ? 1ll << kPlannedBit : 0), to.warp_sums);
  to.counts[threadIdx.x] = tiles;
  to.ends[threadIdx.x] = sums & ((1ll << kPlannedBit) - 1);
  to.pair_ends[threadIdx.x] = static_cast<int>(sums >> kPlannedBit);
}

// WeighedCuts of more pairs than workers, whose requests are of several chunks. All threads.
__device__ void cut_chunks(const PlanInput& in, int chunks, const ScannedChunk& scanned, WeighedCuts& cuts,
                           long long* begins) {
  WeighedRequests& requests = cuts.requests;
  const int run = threadIdx.x;
  WeighedCuts::LineCut own;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    __syncthreads();
    scan_chunk(in, chunk, scanned);
    __syncthreads();
    const long long target = cuts.target(run), heads = requests.heads;
    const long long begin = (requests.tiles_before + requests.pairs_before * in.segment_tiles) * heads;
    const long long end = requests.weight_end(kPlanThreads - 1, in.segment_tiles) * heads;
    if (run < cuts.workers && target >= begin && target < end) own = cuts.line_cut(target);
    requests.tiles_before += scanned.ends[kPlanThreads - 1];
    requests.pairs_before += scanned.pair_ends[kPlanThreads - 1];
  }
  cuts.cut_line(own, begins);
  __syncthreads();
}

// The last tile of the pair that `tile` belongs to. It may lie behind the chunk: then by counting from there on.
__device__ long long pair_end(const PlanInput& in, const Chunk& chunk, long long chunk_end, long long tile) {
  if (tile < chunk_end) {
    const int r = chunk.find(tile);
    const long long pair = chunk.begin_of(r);
    return pair + ((tile - pair) / chunk.counts[r] * chunk.counts[r] + chunk.counts[r] - 1);
  }
  long long pair = chunk_end;
  for (int r = chunk.first_request + chunk.num_requests;; ++r) {
    const int tiles = decode_tiles(in, r);
    const long long next = pair + static_cast<long long>(tiles) * in.num_kv_heads;
    if (tile < next) return pair + ((tile - pair) / tiles * tiles + tiles - 1);
    pair = next;
  }
}

__device__ void clear_arrivals(const PlanInput& in, int num_workers) {
  if (in.arrivals == nullptr) return;
  for (int i = threadIdx.x; i < 2 * num_workers; i += kPlanThreads) in.arrivals[i] = 0;
}

// Requests are scanned in chunks of one per thread. The line is cut as if `lockstep` heads were one, in.num_kv_heads
// counting these, and their workers one. All threads of a CTA of kPlanThreads.
__device__ inline void decode_plan(const PlanInput& in, DecodeWorker* workers, int num_workers, int num_groups,
                                   int lockstep) {
  __shared__ long long warp_sums[32];
  __shared__ long long ends[kPlanThreads];
  __shared__ int counts[kPlanThreads], pair_ends[kPlanThreads];
  __shared__ int shortest, longest, planned_requests;
  __shared__ long long begins[kMaxWeighedRuns];
  if (threadIdx.x == 0) {
    shortest = 1 << 30;
    longest = planned_requests = 0;
  }
  const ScannedChunk scanned = {counts, ends, pair_ends, warp_sums};
  const int chunks = (in.num_requests + kPlanThreads - 1) / kPlanThreads;
  clear_arrivals(in, num_workers);

  long long total = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    scan_chunk(in, chunk, scanned);
    if (const int tiles = counts[threadIdx.x]; tiles > 0) {
      atomicMin(&shortest, tiles);
      atomicMax(&longest, tiles);
      atomicAdd(&planned_requests, 1);
    }
    __syncthreads();
    total += ends[kPlanThreads - 1];
    if (chunks > 1) __syncthreads();
  }
  total *= in.num_kv_heads;
  if (total == 0) {
    for (int worker = threadIdx.x; worker < num_workers; worker += kPlanThreads) workers[worker] = {};
    return;
  }
  const long long pairs = static_cast<long long>(planned_requests) * in.num_kv_heads;
  Cut cut;
  const bool weighed = in.segment_tiles > 0 && num_groups <= kMaxWeighedRuns;
  WeighedRequests requests = {min(in.num_requests, kPlanThreads), in.num_kv_heads, counts, ends, pair_ends};
  WeighedCuts cuts = {requests, in, total, static_cast<int>(pairs), longest, num_groups};
  if (weighed && chunks == 1) {
    cut = {total, cuts.find(begins), begins};
  } else if (weighed && pairs > num_groups) {
    cut_chunks(in, chunks, scanned, cuts, begins);
    cut = {total, num_groups, begins};
  } else {
    cut = {total, static_cast<int>(count_runs(total, {pairs, shortest, longest}, num_groups, in.cut_long_pairs))};
  }
  for (int worker = cut.runs * lockstep + threadIdx.x; worker < num_workers; worker += kPlanThreads) {
    workers[worker] = {};
  }

  long long base = 0;  // tiles of the chunks before
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (chunks > 1) {
      __syncthreads();
      scan_chunk(in, chunk, scanned);
      __syncthreads();
    }
    const Chunk own = {chunk * kPlanThreads, min(kPlanThreads, in.num_requests - chunk * kPlanThreads),
                       in.num_kv_heads, counts, ends, base};
    const long long chunk_begin = base * in.num_kv_heads;
    const long long chunk_end = (base + ends[kPlanThreads - 1]) * in.num_kv_heads;
    for (int worker = threadIdx.x; worker < cut.runs * lockstep; worker += kPlanThreads) {
      const int group = worker / lockstep, side = worker % lockstep;
      const long long begin = cut.begin(group), end = cut.begin(group + 1);
      if (begin == end) workers[worker] = {};
      if (begin == end || begin < chunk_begin || begin >= chunk_end) continue;
      const int r = own.find(begin);
      const int offset = static_cast<int>(begin - own.begin_of(r));
      DecodeWorker run;
      run.request = own.first_request + r;
      run.q_begin = in.q_indptr[run.request];
      run.q_len = in.q_indptr[run.request + 1] - run.q_begin;
      run.kv_len = in.kv_lens[run.request];
      run.head = offset / counts[r] * lockstep + side;
      run.tile = offset % counts[r];
      run.num_tiles = static_cast<int>(end - begin);
      const long long pair_begin = begin - run.tile;
      run.first_pair_begin = cut.run_of(pair_begin) * lockstep + side;
      run.first_pair_end = cut.run_of(pair_begin + counts[r] - 1) * lockstep + side;
      run.last_pair_end = cut.run_of(pair_end(in, own, chunk_end, end - 1)) * lockstep + side;
      workers[worker] = run;
    }
    base += ends[kPlanThreads - 1];
  }
}

}  // namespace
}  // namespace warpweave::cuda
