#include "attention/cuda/block_scan.cuh"
#include "attention/cuda/plan.h"

namespace warpweave::cuda {
namespace {

constexpr int kPlanThreads = 1024;

__device__ int decode_tiles(const PlanInput& in, int request) {
  const int q_len = in.q_indptr[request + 1] - in.q_indptr[request];
  if (q_len > in.decode_q_len) return 0;
  const int kv_len = in.kv_lens[request];
  const int visible = kv_len - first_visible(kv_len, q_len, in.window_left);
  return max(1, (visible + kDecodeTileTokens - 1) / kDecodeTileTokens);
}

// Into how many runs to cut `total` tiles. More than a few tiles a piece, or merging costs more than the
// split gains; and pairs of one length are cut at their ends, or into equal pieces, where nearly all
// workers can be used so.
constexpr int kMinPieceTiles = 4;
// From this on all workers are used, whatever is cut.
constexpr int kLongRunTiles = 96;

__device__ long long count_runs(long long total, long long pairs, int shortest, int longest, int num_workers) {
  const long long runs = min(static_cast<long long>(num_workers), (total + kMinPieceTiles - 1) / kMinPieceTiles);
  if (shortest != longest) return runs;
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

// Requests are scanned in chunks of one per thread; `ends` keeps the running ends of the chunk.
// The line is cut as if `abreast` heads were one, in.num_kv_heads counting these, and their workers one.
__global__ void __launch_bounds__(kPlanThreads) decode_plan(PlanInput in, DecodeWorker* workers,
                                                            int num_workers, int num_groups, int abreast) {
  __shared__ long long warp_sums[32];
  __shared__ long long ends[kPlanThreads];
  __shared__ int counts[kPlanThreads];
  __shared__ int shortest, longest, planned_requests;
  if (threadIdx.x == 0) {
    shortest = 1 << 30;
    longest = 0;
    planned_requests = 0;
  }
  const int chunks = (in.num_requests + kPlanThreads - 1) / kPlanThreads;

  long long total = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int request = chunk * kPlanThreads + threadIdx.x;
    const int tiles = request < in.num_requests ? decode_tiles(in, request) : 0;
    const long long end = block_inclusive_scan(tiles, warp_sums);
    counts[threadIdx.x] = tiles;
    ends[threadIdx.x] = end;
    if (tiles > 0) {
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
  const int active = static_cast<int>(count_runs(total, pairs, shortest, longest, num_groups));
  // Runs are cut from shares counted up; equal shares where pairs are kept whole.
  const bool late = active == num_groups && in.first_late_worker < num_groups;
  const int early = late ? in.first_late_worker : active;
  const int full = late ? kWholeShare : 1, share = late ? in.late_share : 1;
  const int shares = early * full + (active - early) * share;
  auto run_begin = [&](int group) {
    return (min(group, early) * full + max(group - early, 0) * share) * total / shares;
  };
  auto group_of = [&](long long unit) {
    const int place = static_cast<int>(((unit + 1) * shares - 1) / total);
    return place < early * full ? place / full : early + (place - early * full) / share;
  };

  for (int worker = active * abreast + threadIdx.x; worker < num_workers; worker += kPlanThreads) {
    workers[worker] = {};
  }

  long long base = 0;  // tiles of the chunks before
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (chunks > 1) {
      __syncthreads();
      const int request = chunk * kPlanThreads + threadIdx.x;
      const int tiles = request < in.num_requests ? decode_tiles(in, request) : 0;
      const long long end = block_inclusive_scan(tiles, warp_sums);
      counts[threadIdx.x] = tiles;
      ends[threadIdx.x] = base + end;
      __syncthreads();
    }
    const int in_chunk = min(kPlanThreads, in.num_requests - chunk * kPlanThreads);
    const long long chunk_begin = base * in.num_kv_heads;
    const long long chunk_end = ends[kPlanThreads - 1] * in.num_kv_heads;
    for (int worker = threadIdx.x; worker < active * abreast; worker += kPlanThreads) {
      DecodeWorker run;
      const int group = worker / abreast, side = worker % abreast;
      const long long begin = run_begin(group), end = run_begin(group + 1);
      if (begin < chunk_begin || begin >= chunk_end) continue;
      int low = 0, high = in_chunk - 1;  // the first request whose end lies past `begin`
      while (low < high) {
        const int middle = (low + high) / 2;
        if (ends[middle] * in.num_kv_heads > begin) high = middle; else low = middle + 1;
      }
      const long long request_begin = (ends[low] - counts[low]) * in.num_kv_heads;
      const int offset = static_cast<int>(begin - request_begin);
      run.request = chunk * kPlanThreads + low;
      run.q_begin = in.q_indptr[run.request];
      run.q_len = in.q_indptr[run.request + 1] - run.q_begin;
      run.kv_len = in.kv_lens[run.request];
      run.head = offset / counts[low] * abreast + side;
      run.tile = offset % counts[low];
      run.num_tiles = static_cast<int>(end - begin);
      const long long pair_begin = begin - run.tile;
      run.first_pair_begin = group_of(pair_begin) * abreast + side;
      run.first_pair_end = group_of(pair_begin + counts[low] - 1) * abreast + side;
      // The pair of the last unit may lie in a later chunk: search on from here by counting.
      long long last = end - 1, pair = request_begin;
      int r = low;
      if (last < chunk_end) {
        int l = low, h = in_chunk - 1;
        while (l < h) {
          const int middle = (l + h) / 2;
          if (ends[middle] * in.num_kv_heads > last) h = middle; else l = middle + 1;
        }
        r = l;
        pair = (ends[r] - counts[r]) * in.num_kv_heads;
        pair += (last - pair) / counts[r] * counts[r] + counts[r] - 1;
      } else {
        pair = chunk_end;
        for (r = chunk * kPlanThreads + in_chunk;; ++r) {
          const int tiles = decode_tiles(in, r);
          const long long next = pair + static_cast<long long>(tiles) * in.num_kv_heads;
          if (last < next) {
            pair += (last - pair) / tiles * tiles + tiles - 1;
            break;
          }
          pair = next;
        }
      }
      run.last_pair_end = group_of(pair) * abreast + side;
      workers[worker] = run;
    }
    base = ends[kPlanThreads - 1];
    if (chunks == 1) break;
  }
}

// Items are put into kBuckets classes of KV length by a counting sort. The order inside a class is
// not fixed; no result depends on it.
constexpr int kBuckets = 1024;


__device__ int tile_bucket(const PlanInput& in, int kv_len, int q_len, int last_token, int longest) {
  const int seen = in.causal ? kv_len - q_len + last_token + 1 : kv_len;
  const int scaled = static_cast<int>(static_cast<long long>(seen) * (kBuckets - 1) / max(longest, 1));
  return kBuckets - 1 - min(max(scaled, 0), kBuckets - 1);
}

// About half of a large L2 cache: the rest is for Q, the output and what is being evicted.
constexpr long long kSectionBytes = 24ll << 20;

// CTAs that take tiles in turn, longest first, begin anew with long ones in every section. Requests of one length end
// a section with tiles of a few blocks on all CTAs alike; with uneven lengths the CTAs that got the longer one of each
// turn are late at every section's end (by 7 % in all, counted in blocks for 24 requests of 64 to 4096 tokens in eight
// sections; 1.4 % in one), which costs more than reading K and V from memory again.
__device__ int section_kv_heads(const PlanInput& in, int shortest, int longest, unsigned long long kv_tokens) {
  if (in.copies.max_blocks > 0) return 1;  // the first heads are waited for
  if (in.tiles_in_turn && shortest < longest - longest / 8) return in.num_kv_heads;
  const long long head_bytes = max(1ll, static_cast<long long>(kv_tokens) * in.head_token_bytes);
  int heads = static_cast<int>(min(static_cast<long long>(in.num_kv_heads), kSectionBytes / head_bytes));
  while (heads > 1 && in.num_kv_heads % heads != 0) --heads;
  return max(1, heads);
}

// Lists the blocks of K and V that the tiles read; returns their number.
__device__ int list_copies(const PlanInput& in, long long* warp_sums) {
  const ExtendCopies& copies = in.copies;
  for (int head = threadIdx.x; head < in.num_kv_heads; head += kPlanThreads) copies.ready[head] = 0;
  __shared__ int chunk_blocks;
  int base = 0;
  for (int chunk = 0; chunk < in.num_requests; chunk += kPlanThreads) {
    const int r = chunk + threadIdx.x;
    int count = 0, first = 0;
    if (r < in.num_requests) {
      const int q_len = in.q_indptr[r + 1] - in.q_indptr[r];
      first = first_visible(in.kv_lens[r], q_len, in.window_left) / kCopyBlockTokens;
      if (q_len > in.decode_q_len) count = (in.kv_lens[r] + kCopyBlockTokens - 1) / kCopyBlockTokens - first;
    }
    const int end = base + static_cast<int>(block_inclusive_scan(count, warp_sums));
    if (threadIdx.x == kPlanThreads - 1) chunk_blocks = end;
    if (r < in.num_requests) copies.first_blocks[r] = end - count - first;
    __syncthreads();
    base = chunk_blocks;
    __syncthreads();
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int r = warp; r < in.num_requests; r += kPlanThreads / 32) {
    const int q_len = in.q_indptr[r + 1] - in.q_indptr[r];
    if (q_len <= in.decode_q_len) continue;
    const int first = first_visible(in.kv_lens[r], q_len, in.window_left) / kCopyBlockTokens;
    const int blocks = (in.kv_lens[r] + kCopyBlockTokens - 1) / kCopyBlockTokens;
    for (int block = first + lane; block < blocks; block += 32) {
      copies.blocks[copies.first_blocks[r] + block] = {r, block};
    }
  }
  return base;
}

__global__ void __launch_bounds__(kPlanThreads) extend_plan(PlanInput in, int tile_rows,
                                                            int rows_per_token, ExtendItem* items,
                                                            ExtendHeader* header) {
  __shared__ int counts[kBuckets];
  __shared__ long long warp_sums[32];
  __shared__ int shortest, longest;  // of the requests whose tiles are listed
  __shared__ unsigned long long kv_tokens;
  counts[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    shortest = 1 << 30;
    longest = 0;
    kv_tokens = 0;
  }
  __syncthreads();
  for (int r = threadIdx.x; r < in.num_requests; r += kPlanThreads) {
    if (in.q_indptr[r + 1] - in.q_indptr[r] <= in.decode_q_len) continue;
    atomicMin(&shortest, in.kv_lens[r]);
    atomicMax(&longest, in.kv_lens[r]);
    atomicAdd(&kv_tokens, static_cast<unsigned long long>(in.kv_lens[r]));
  }
  __syncthreads();

  const int num_blocks = in.copies.max_blocks > 0 ? list_copies(in, warp_sums) : 0;

  // A warp takes a request, its lanes the tiles.
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int pass = 0; pass < 2; ++pass) {
    for (int r = warp; r < in.num_requests; r += kPlanThreads / 32) {
      const int q_len = in.q_indptr[r + 1] - in.q_indptr[r];
      if (q_len <= in.decode_q_len) continue;
      const int tiles = (q_len * rows_per_token + tile_rows - 1) / tile_rows;
      for (int tile = lane; tile < tiles; tile += 32) {
        const int last_token = min(q_len, ((tile + 1) * tile_rows - 1) / rows_per_token + 1) - 1;
        const int bucket = tile_bucket(in, in.kv_lens[r], q_len, last_token, longest);
        const int place = atomicAdd(&counts[bucket], 1);
        if (pass == 1) items[place] = {r, tile};
      }
    }
    __syncthreads();
    if (pass == 0) {  // counts become the places where each class begins
      const int count = counts[threadIdx.x];
      const int end = static_cast<int>(block_inclusive_scan(count, warp_sums));
      counts[threadIdx.x] = end - count;
      if (threadIdx.x == kPlanThreads - 1) {
        *header = {end, section_kv_heads(in, shortest, longest, kv_tokens), 0, 0, num_blocks};
      }
      __syncthreads();
    }
  }
}

}  // namespace

cudaError_t launch_decode_plan(const PlanInput& input, DecodeWorker* workers, int num_workers,
                               cudaStream_t stream) {
  const int abreast = heads_abreast(input.num_kv_heads, num_workers);
  PlanInput in_groups = input;
  in_groups.num_kv_heads /= abreast;
  in_groups.first_late_worker /= abreast;
  decode_plan<<<1, kPlanThreads, 0, stream>>>(in_groups, workers, num_workers, num_workers / abreast, abreast);
  return cudaPeekAtLastError();
}

cudaError_t launch_extend_plan(const PlanInput& input, int tile_rows, int rows_per_token,
                               ExtendItem* items, ExtendHeader* header, cudaStream_t stream) {
  static_assert(kBuckets == kPlanThreads);
  extend_plan<<<1, kPlanThreads, 0, stream>>>(input, tile_rows, rows_per_token, items, header);
  return cudaPeekAtLastError();
}

}  // namespace warpweave::cuda
