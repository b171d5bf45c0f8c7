// Where to cut the line of a decode plan (decode_plan.cuh) when beginning and ending a pair takes a worker as long as
// some tiles do, and merging pieces some more (PlanInput::segment_tiles, merge_tiles). One CTA.
//
// Fewer pairs than workers, of requests of one chunk: each is cut into equal pieces by itself, so that a worker has
// one, unless equal runs over the ends of pairs take less time. More pairs than workers: runs of equal weight, which
// end with a pair unless cutting pairs takes less time.
#pragma once

#include "attention/cuda/block_scan.cuh"
#include "attention/cuda/plan_input.h"

namespace warpweave::cuda {
namespace {

constexpr int kMaxWeighedRuns = 1024;
constexpr int kLengthsTried = 32;  // one a warp
constexpr int kMinLineTiles = 4;   // of a run that may reach over the ends of pairs

__device__ inline int divided_up(int a, int b) { return (a + b - 1) / b; }

// The requests of a chunk of a plan, a thread each: `tiles` of one head, 0: not planned; sums up to the request's own,
// included.
struct WeighedRequests {
  int count, heads;
  const int* tiles;
  const long long* tile_ends;
  const int* pair_ends;  // planned requests
  long long tiles_before = 0, pairs_before = 0;  // of one head, in the chunks before

  // Of one head.
  __device__ long long weight_end(int r, int segment_tiles) const {
    return tiles_before + tile_ends[r] + (pairs_before + pair_ends[r]) * segment_tiles;
  }
  __device__ long long tile_begin(int r) const { return (tiles_before + tile_ends[r] - tiles[r]) * heads; }
};

// The first of `count` elements that `past` holds for; it holds for the last one, and for all behind the first.
template <class Past>
__device__ int first_past(int count, Past past) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (past(middle)) high = middle; else low = middle + 1;
  }
  return low;
}

struct WeighedCuts {
  WeighedRequests& requests;
  const PlanInput& in;
  long long total;  // tiles
  int pairs, longest, workers;

  // In tiles of time.
  __device__ int merging(long long pieces) const {
    return in.merge_tiles + static_cast<int>(pieces / in.merged_pieces_a_tile);
  }

  struct Pieces {
    int length, time;  // most tiles of one; of the longest run, merging included, in tiles
  };
  // What takes least time of the lengths tried, under which there are no more pieces than workers. All threads.
  __device__ Pieces best_pieces() const {
    __shared__ int times[kLengthsTried];
    const int least = static_cast<int>((total + workers - 1) / workers), most = max(least, longest);
    const auto tried = [&](int i) {  // closer to each other where they are short
      constexpr int kLast = kLengthsTried - 1;
      return least + static_cast<int>(static_cast<long long>(most - least) * i * i / (kLast * kLast));
    };
    const int warp = threadIdx.x / 32, length = tried(warp);
    int sum = 0;
    for (int r = threadIdx.x % 32; r < requests.count; r += 32) sum += divided_up(requests.tiles[r], length);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    const long long pieces = static_cast<long long>(sum) * requests.heads;
    if (threadIdx.x % 32 == 0) {
      times[warp] = pieces > workers ? 1 << 30 : length + in.segment_tiles + (length < longest ? merging(pieces) : 0);
    }
    __syncthreads();
    int time = times[threadIdx.x % 32], best = threadIdx.x % 32;
    for (int step = 16; step > 0; step /= 2) {  // the longest of those that take least time
      const int other_time = __shfl_xor_sync(~0u, time, step), other = __shfl_xor_sync(~0u, best, step);
      if (other_time < time || (other_time == time && other > best)) time = other_time, best = other;
    }
    return {tried(best), time};
  }

  // Every pair in equal pieces of up to `length` tiles; how many there are.
  __device__ int cut_pairs(int length, long long* begins) const {
    __shared__ long long piece_ends[kPlanThreads], warp_sums[32];
    const int r = threadIdx.x;
    const int own = r < requests.count ? divided_up(requests.tiles[r], length) * requests.heads : 0;
    piece_ends[r] = block_inclusive_scan(own, warp_sums);
    __syncthreads();
    const int runs = static_cast<int>(piece_ends[requests.count - 1]);
    if (r < runs) {
      const int request = first_past(requests.count, [&](int i) { return piece_ends[i] > r; });
      const int tiles = requests.tiles[request], pieces = divided_up(tiles, length);
      const int piece = r - static_cast<int>(piece_ends[request]) + pieces * requests.heads;
      begins[r] = requests.tile_begin(request) + static_cast<long long>(piece / pieces) * tiles +
                  static_cast<long long>(piece % pieces) * tiles / pieces;
    }
    return runs;
  }

  struct LineCut {
    long long at = 0;              // the tile to cut at
    long long near = 0;            // or where a pair begins
    long long near_weight = 0;     // before that
  };
  // Where weight `target` is reached, which it is in these requests.
  __device__ LineCut line_cut(long long target) const {
    const auto weight_end = [&](int r) { return requests.weight_end(r, in.segment_tiles) * requests.heads; };
    const int r = first_past(requests.count, [&](int i) { return weight_end(i) > target; });
    const int tiles = requests.tiles[r], pair_weight = tiles + in.segment_tiles;
    const long long begin = weight_end(r) - static_cast<long long>(pair_weight) * requests.heads;
    const int pair = static_cast<int>((target - begin) / pair_weight);
    const int inside = static_cast<int>((target - begin) % pair_weight);
    const int nearest = pair + (2 * inside < pair_weight ? 0 : 1), tile = inside - in.segment_tiles;
    LineCut cut;
    cut.near = requests.tile_begin(r) + static_cast<long long>(nearest) * tiles;
    cut.near_weight = begin + static_cast<long long>(nearest) * pair_weight;
    cut.at = requests.tile_begin(r) + static_cast<long long>(pair) * tiles +
             (tile < kMinLineTiles / 2 ? 0 : tile > tiles - kMinLineTiles / 2 ? tiles : tile);
    return cut;
  }

  __device__ long long weight() const { return total + static_cast<long long>(pairs) * in.segment_tiles; }
  __device__ long long target(int run) const { return run * weight() / workers; }

  // Runs of equal weight, a thread each, that has found its line_cut(target(run)). All threads.
  __device__ void cut_line(const LineCut& own, long long* begins) const {
    __shared__ long long ends_of_pairs[kMaxWeighedRuns + 1];  // the weight before the cut, where pairs are not cut
    __shared__ int heaviest;
    const int run = threadIdx.x;
    if (run == 0) {
      heaviest = 0;
      ends_of_pairs[workers] = weight();
    }
    if (run < workers) ends_of_pairs[run] = own.near_weight;
    __syncthreads();
    if (run < workers) atomicMax(&heaviest, static_cast<int>(ends_of_pairs[run + 1] - ends_of_pairs[run]));
    __syncthreads();
    const bool whole = heaviest <= weight() / workers + in.segment_tiles + merging(2 * workers);
    if (run < workers) begins[run] = whole ? own.near : own.at;
  }

  // Begins of the runs, and how many they are. All threads; `begins` has room for `workers`.
  __device__ int find(long long* begins) const {
    int runs = 0;
    if (pairs <= workers) {
      const Pieces pieces = best_pieces();
      const int of_line = static_cast<int>(total / workers) + 2 * in.segment_tiles + merging(workers + pairs);
      const bool too_short = total < static_cast<long long>(workers) * kMinLineTiles;
      if (too_short || pieces.time <= of_line) runs = cut_pairs(pieces.length, begins);
    }
    if (runs == 0) {
      runs = workers;
      const int run = threadIdx.x;
      cut_line(run < runs ? line_cut(target(run)) : LineCut{}, begins);
    }
    __syncthreads();
    return runs;
  }
};

}  // namespace
}  // namespace warpweave::cuda
