// Copies K and V of small pages to where the Hopper prefill kernel with tall tiles takes them (ExtendCopies),
// as a kernel of its own before that one.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/cuda/attention_params.h"
#include "attention/cuda/page_lookup.cuh"
#include "device/cuda/ptx.h"

namespace warpweave::cuda {

inline constexpr int kCopyPagesThreads = 256;
inline constexpr int kCopyPagesTokens = 16;  // a CTA

// A CTA copies all heads of some tokens, which stand side by side in the pools; what lies past a request's tokens
// becomes zero. Bound by memory: every thread has kLoads reads of K, or of V, under way.
template <int kDim>
__global__ void __launch_bounds__(kCopyPagesThreads) copy_pages(const __grid_constant__ AttentionParams p,
                                                                const __grid_constant__ ExtendCopies copies) {
  constexpr int kChunks = kDim / 8, kLoads = 8;  // of 16 bytes
  __shared__ int64_t rows[kCopyPagesTokens];     // the pools' element where a token's first head begins; -1: none
  constexpr int kParts = kCopyBlockTokens / kCopyPagesTokens;
  const int slot = blockIdx.x / kParts, first = blockIdx.x % kParts * kCopyPagesTokens;
  if (threadIdx.x < kCopyPagesTokens) {
    const ExtendCopyBlock block = copies.blocks[slot];
    const int token = block.block * kCopyBlockTokens + first + threadIdx.x;
    int64_t row = -1;
    if (token < p.kv_lens[block.request]) {
      int in_page;
      const int64_t page = page_of_token(p, block.request, token, in_page);
      row = page * p.page_stride + in_page * p.token_stride;
    }
    rows[threadIdx.x] = row;
  }
  __syncthreads();
  const int chunks = kCopyPagesTokens * p.num_kv_heads * kChunks;
  const auto copy = [&](const void* pool, void* target) {
    for (int begin = threadIdx.x; begin < chunks; begin += kLoads * kCopyPagesThreads) {
      uint4 words[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int at = begin + i * kCopyPagesThreads, head = at / kChunks % p.num_kv_heads;
        words[i] = make_uint4(0, 0, 0, 0);
        if (at >= chunks) continue;
        const int64_t row = rows[at / kChunks / p.num_kv_heads];
        if (row < 0) continue;
        words[i] =
            ptx::load_once_16(static_cast<const char*>(pool) + (row + head * p.head_stride) * 2 + at % kChunks * 16);
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int at = begin + i * kCopyPagesThreads, head = at / kChunks % p.num_kv_heads;
        const int token = at / kChunks / p.num_kv_heads;
        const int64_t row = (static_cast<int64_t>(head) * copies.max_blocks + slot) * kCopyBlockTokens + first + token;
        if (at < chunks) static_cast<uint4*>(target)[row * kChunks + at % kChunks] = words[i];
      }
    }
  };
  copy(p.k, copies.k);
  copy(p.v, copies.v);
}

template <int kDim>
cudaError_t launch_copy_pages(const AttentionParams& p, const ExtendCopies& copies, cudaStream_t stream) {
  const int ctas = copies.max_blocks * (kCopyBlockTokens / kCopyPagesTokens);
  copy_pages<kDim><<<ctas, kCopyPagesThreads, 0, stream>>>(p, copies);
  return cudaGetLastError();
}

}  // namespace warpweave::cuda
