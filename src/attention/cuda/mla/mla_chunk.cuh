// The kernel behind launch_mla_chunk (mla_expand.h), by one CTA; for its test, too, which runs it on the host.
#pragma once

#include "attention/cuda/block_scan.cuh"
#include "attention/cuda/mla/mla_requests.h"
#include "device/cuda/ptx.h"

namespace warpweave::cuda {

WW_DEVICE int mla_chunk_tokens(const MlaParams& p, const MlaChunkRule& rule, int request) {
  const int q_len = p.q_indptr[request + 1] - p.q_indptr[request], kv_len = p.kv_lens[request];
  if (q_len < rule.min_q_len || q_len > kv_len) return 0;
  return rule.fresh ? q_len : max(0, min(kv_len - q_len - rule.begin, rule.max_tokens));
}

namespace {

__global__ void __launch_bounds__(kPlanThreads)
    mla_chunk(const __grid_constant__ MlaParams p, MlaChunkRule rule, MlaChunk chunk) {
  __shared__ long long warp_sums[32];
  __shared__ int pages_before;
  if (threadIdx.x == 0) pages_before = 0;
  __syncthreads();
  for (int first = 0; first < p.num_requests; first += kPlanThreads) {
    const int r = first + static_cast<int>(threadIdx.x);
    const int tokens = r < p.num_requests ? mla_chunk_tokens(p, rule, r) : 0;
    const int pages = (tokens + kExpandedPageTokens - 1) / kExpandedPageTokens;
    const int before = pages_before;
    const int end = before + static_cast<int>(block_inclusive_scan(pages, warp_sums));
    if (r < p.num_requests) {
      chunk.begins[r] = rule.fresh ? p.kv_lens[r] - tokens : rule.begin;
      chunk.kv_lens[r] = tokens;
      chunk.first_rows[r] = (end - pages) * kExpandedPageTokens;
      if (r + 1 == p.num_requests) chunk.first_rows[r + 1] = end * kExpandedPageTokens;
    }
    __syncthreads();  // all have read it
    if (threadIdx.x == kPlanThreads - 1) pages_before = end;
    __syncthreads();
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int r = warp; r < p.num_requests; r += kPlanThreads / 32) {
    const int first_page = chunk.first_rows[r] / kExpandedPageTokens;
    const int pages = (chunk.kv_lens[r] + kExpandedPageTokens - 1) / kExpandedPageTokens;
    for (int i = lane; i < pages; i += 32)
      chunk.page_table[static_cast<int64_t>(r) * chunk.page_table_stride + i] = first_page + i;
  }
}

}  // namespace
}  // namespace warpweave::cuda
