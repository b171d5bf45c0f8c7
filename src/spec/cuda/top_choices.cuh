// The likeliest tokens of a row by one block: pass by pass the largest key below the one before, where a key orders by
// value, then by the lower id. The first pass adds up the probabilities, too. Where one token of few rows is wanted,
// several blocks share a row, and another one puts together what they found, or what the head's GEMM did. For
// draft_kernels.cu, and for its test, which runs it on the host.
#pragma once

#include "device/cuda/ptx.h"
#include "ops/cuda/top_seen.cuh"
#include "spec/cuda/draft_kernels.h"

namespace warpweave::gpu {
namespace {

constexpr int kTopThreads = 1024;   // of a block that has a row
constexpr int kPartThreads = 256;   // of one that has a part: four stand on an SM, so that all of 64 rows' run at once
constexpr int kMergeThreads = 128;  // of one that puts the parts of a row together
static_assert(kLeastChoice == kImpossibleChoice);

template <int kThreads>
struct TopShared {
  static constexpr int kWarps = kThreads / 32;
  unsigned long long best[kWarps];
  float max[kWarps];
  float sum[kWarps];
};

__device__ float value_of(unsigned long long key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}

template <int kThreads>
__device__ unsigned long long block_max(unsigned long long key, TopShared<kThreads>& shared) {
  for (int step = 16; step > 0; step /= 2) key = max(key, __shfl_xor_sync(~0u, key, step));
  if (threadIdx.x % 32 == 0) shared.best[threadIdx.x / 32] = key;
  __syncthreads();
  for (int w = 0; w < shared.kWarps; ++w) key = max(key, shared.best[w]);
  __syncthreads();
  return key;
}

// log of the sum of exp(value) over the block; a thread's own is sum * exp(-largest).
template <int kThreads>
__device__ float block_log_sum(float largest, float sum, TopShared<kThreads>& shared) {
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
  for (int w = 0; w < shared.kWarps; ++w) largest = max(largest, shared.max[w]);
  sum = 0;
  for (int w = 0; w < shared.kWarps; ++w) sum += shared.sum[w] * __expf(shared.max[w] - largest);
  __syncthreads();
  return largest + logf(sum);
}

// A thread's columns from `begin` to `end`, in order, several at a time: their sum is scaled once for all of them.
template <int kThreads>
__device__ void see(TopSeen& seen, const float* row, int begin, int end) {
  constexpr int kSeenAtOnce = kThreads == kTopThreads ? 8 : 16;
  for (int first = begin + static_cast<int>(threadIdx.x); first < end; first += kSeenAtOnce * kThreads) {
    float values[kSeenAtOnce];
#pragma unroll
    for (int k = 0; k < kSeenAtOnce; ++k) {
      const int id = first + k * kThreads;
      values[k] = id < end ? row[id] : 0;
    }
    const auto id_of = [=](int k) { return first + k * kThreads; };
#pragma unroll
    for (int k = 0; k < kSeenAtOnce; ++k) values[k] = id_of(k) < end ? number_or_least(values[k]) : -INFINITY;
    seen.add(values, id_of);
  }
}

__device__ DraftChoice choice_of(unsigned long long key, float log_sum, const int32_t* tokens) {
  const int column = key == 0 ? 0 : static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
  DraftChoice out;
  out.token = tokens != nullptr ? tokens[column] : column;
  out.logprob = key == 0 ? kImpossibleChoice : value_of(key) - log_sum;
  return out;
}

// Block (part, row) of `parts` blocks a row: the likeliest of its columns, and the log of their sum.
__global__ void __launch_bounds__(kPartThreads) top_parts_kernel(const float* logits, int vocab_size, int parts,
                                                                 TopPart* out) {
  __shared__ TopShared<kPartThreads> shared;
  const float* const row = logits + int64_t{blockIdx.y} * vocab_size;
  const int columns = (vocab_size + parts - 1) / parts, begin = static_cast<int>(blockIdx.x) * columns;
  const int end = min(begin + columns, vocab_size);
  TopSeen seen;
  see<kPartThreads>(seen, row, begin, end);
  const float log_sum = block_log_sum(seen.largest_possible(), seen.sum, shared);
  const unsigned long long key = block_max(seen.key(), shared);
  if (threadIdx.x == 0) out[int64_t{blockIdx.y} * parts + blockIdx.x] = {key, log_sum};
}

// A block a row.
__global__ void __launch_bounds__(kMergeThreads) top_of_parts_kernel(TopOfPartsCall call) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  __shared__ TopShared<kMergeThreads> shared;
  const TopPart* const found = call.found + int64_t{blockIdx.x} * call.parts;
  unsigned long long key = 0;
  float largest = kLeastChoice, sum = 0;  // of exp(log_sum - largest)
  for (int part = static_cast<int>(threadIdx.x); part < call.parts; part += kMergeThreads) {
    const TopPart own = found[part];
    key = max(key, own.key);
    const float both = max(largest, own.log_sum);
    sum = sum * __expf(largest - both) + __expf(own.log_sum - both);
    largest = both;
  }
  const float log_sum = block_log_sum(largest, sum, shared);
  key = block_max(key, shared);
  if (threadIdx.x == 0) call.out[blockIdx.x] = choice_of(key, log_sum, call.tokens);
}

__global__ void __launch_bounds__(kTopThreads) top_choices_kernel(const float* logits, int vocab_size,
                                                                  const int32_t* tokens, int topk, DraftChoice* out) {
  __shared__ TopShared<kTopThreads> shared;
  const float* const row = logits + int64_t{blockIdx.x} * vocab_size;
  TopSeen seen;
  see<kTopThreads>(seen, row, 0, vocab_size);
  const float log_sum = block_log_sum(seen.largest_possible(), seen.sum, shared);
  unsigned long long key = block_max(seen.key(), shared);
  for (int k = 0;; ++k) {
    if (threadIdx.x == 0) out[int64_t{blockIdx.x} * topk + k] = choice_of(key, log_sum, tokens);
    if (k + 1 == topk) return;
    unsigned long long best = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < vocab_size; i += kTopThreads) {
      const unsigned long long other = choice_key(number_or_least(row[i]), i);
      if (other < key && other > best) best = other;
    }
    key = block_max(best, shared);
  }
}

}  // namespace
}  // namespace warpweave::gpu
