// The likeliest tokens of a row by one block: pass by pass the largest key below the one before, where a key orders by
// value, then by the lower id. The first pass adds up the probabilities, too. For draft_kernels.cu, and for its test,
// which runs it on the host.
#pragma once

#include "spec/draft_tree.h"

namespace warpweave::gpu {
namespace {

constexpr int kTopThreads = 1024;
constexpr int kTopWarps = kTopThreads / 32;

struct TopShared {
  unsigned long long best[kTopWarps];
  float max[kTopWarps];
  float sum[kTopWarps];
};

__device__ float number_or_impossible(float x) { return isfinite(x) && x > kImpossibleChoice ? x : kImpossibleChoice; }

// Above 0 for every id below 2^32 - 1.
__device__ unsigned long long choice_key(float value, int id) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

__device__ float value_of(unsigned long long key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}

__device__ unsigned long long block_max(unsigned long long key, TopShared& shared) {
  for (int step = 16; step > 0; step /= 2) key = max(key, __shfl_xor_sync(~0u, key, step));
  if (threadIdx.x % 32 == 0) shared.best[threadIdx.x / 32] = key;
  __syncthreads();
  for (int w = 0; w < kTopWarps; ++w) key = max(key, shared.best[w]);
  __syncthreads();
  return key;
}

// log of the sum of exp(value) over the block; a thread's own is sum * exp(-largest).
__device__ float block_log_sum(float largest, float sum, TopShared& shared) {
  for (int step = 16; step > 0; step /= 2) {
    const float other_largest = __shfl_xor_sync(~0u, largest, step), other_sum = __shfl_xor_sync(~0u, sum, step);
    const float both = max(largest, other_largest);
    sum = sum * __expf(largest - both) + other_sum * __expf(other_largest - both);
    largest = both;
  }
  if (threadIdx.x % 32 == 0) {
    shared.max[threadIdx.x / 32] = largest;
    shared.sum[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  for (int w = 0; w < kTopWarps; ++w) largest = max(largest, shared.max[w]);
  sum = 0;
  for (int w = 0; w < kTopWarps; ++w) sum += shared.sum[w] * __expf(shared.max[w] - largest);
  __syncthreads();
  return largest + logf(sum);
}

__global__ void __launch_bounds__(kTopThreads) top_choices_kernel(const float* logits, int vocab_size,
                                                                  const int32_t* tokens, int topk, DraftChoice* out) {
  __shared__ TopShared shared;
  const float* const row = logits + int64_t{blockIdx.x} * vocab_size;
  unsigned long long best = 0;
  float largest = kImpossibleChoice, sum = 0;
#pragma unroll 8
  for (int i = threadIdx.x; i < vocab_size; i += kTopThreads) {
    const float value = number_or_impossible(row[i]);
    const unsigned long long key = choice_key(value, i);
    best = max(best, key);
    if (value > largest) {
      sum *= __expf(largest - value);
      largest = value;
    }
    sum += __expf(value - largest);
  }
  const float log_sum = block_log_sum(largest, sum, shared);
  unsigned long long key = block_max(best, shared);
  for (int k = 0;; ++k) {
    if (threadIdx.x == 0) {
      DraftChoice& choice = out[int64_t{blockIdx.x} * topk + k];
      const int column = key == 0 ? 0 : static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
      choice.token = tokens != nullptr ? tokens[column] : column;
      choice.logprob = key == 0 ? kImpossibleChoice : value_of(key) - log_sum;
    }
    if (k + 1 == topk) return;
    best = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < vocab_size; i += kTopThreads) {
      const unsigned long long other = choice_key(number_or_impossible(row[i]), i);
      if (other < key && other > best) best = other;
    }
    key = block_max(best, shared);
  }
}

}  // namespace
}  // namespace warpweave::gpu
