// The sorted tiles of prefill (ExtendItem), and the blocks of K and V to copy for them, by one CTA. For plan.cu, and
// for its test, which runs it on the host.
#pragma once

#include "attention/cuda/block_scan.cuh"
#include "attention/cuda/plan_input.h"

namespace warpweave::cuda {
namespace {

// Items are put into kBuckets classes of KV length by a counting sort. The order inside a class is
// not fixed; no result depends on it.
constexpr int kBuckets = 1024;
static_assert(kBuckets == kPlanThreads);

__device__ int tile_bucket(const PlanInput& in, int kv_len, int q_len, int last_token, int longest) {
  const int seen = in.causal ? kv_len - q_len + last_token + 1 : kv_len;
  const int scaled = static_cast<int>(static_cast<long long>(seen) * (kBuckets - 1) / max(longest, 1));
  return kBuckets - 1 - min(max(scaled, 0), kBuckets - 1);
}

// CTAs that take tiles in turn, longest first, begin anew with long ones in every section. Requests of one length end
// a section with tiles of a few blocks on all CTAs alike; with uneven lengths the CTAs that got the longer one of each
// turn are late at every section's end (by 7 % in all, counted in blocks for 24 requests of 64 to 4096 tokens in eight
// sections; 1.4 % in one), which costs more than reading K and V from memory again.
__device__ int section_kv_heads(const PlanInput& in, int shortest, int longest, unsigned long long kv_tokens) {
  if (in.copies.ready != nullptr) return 1;  // the first heads are waited for
  if (in.tiles_in_turn && shortest < longest - longest / 8) return in.num_kv_heads;
  const long long head_bytes = max(1ll, static_cast<long long>(kv_tokens) * in.head_token_bytes);
  int heads = static_cast<int>(min(static_cast<long long>(in.num_kv_heads), in.section_bytes / head_bytes));
  while (heads > 1 && in.num_kv_heads % heads != 0) --heads;
  return max(1, heads);
}

// Lists the blocks of K and V that the tiles read; returns their number.
__device__ int list_copies(const PlanInput& in, long long* warp_sums) {
  const ExtendCopies& copies = in.copies;
  if (copies.ready != nullptr && static_cast<int>(threadIdx.x) < in.num_kv_heads) copies.ready[threadIdx.x] = 0;
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

__global__ void __launch_bounds__(kPlanThreads, 1) extend_plan(PlanInput in, int tile_rows, int rows_per_token,
                                                               ExtendItem* items, ExtendHeader* header) {
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
}  // namespace warpweave::cuda
