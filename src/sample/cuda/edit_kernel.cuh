// What is done to rows of logits before and after their sampling: log-probabilities, penalties, biases, masks. A block
// has a row. For sample_rows.cu, and for its test, which runs it on the host.
#pragma once

#include "sample/cuda/sample_kernel.cuh"

namespace warpweave::gpu {
namespace {

using Key = unsigned long long;

// The largest key of a row that is below `limit`, or 0 where none is.
__device__ Key block_best_below(const float* logits, int vocab_size, Key limit, Shared& shared) {
  Key best = 0;
  each_logit(logits, vocab_size, {0, vocab_size}, [&](float x, int i) {
    const Key key = argmax_key(x, i);
    if (key < limit) best = max(best, key);
  });
  for (int step = 16; step > 0; step /= 2) best = max(best, __shfl_xor_sync(~0u, best, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.best[threadIdx.x / 32] = best;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) best = max(best, shared.best[w]);
  return best;
}

__device__ int id_of_key(Key key) { return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key)); }

// The logarithm of the sum of the exponentials of a row whose largest value is `most`.
__device__ double block_log_sum(const float* logits, int vocab_size, float most, Shared& shared) {
  float part = 0;
  each_logit(logits, vocab_size, {0, vocab_size}, [&](float x, int) { part += expf(x - most); });
  double sum = warp_sum(part);
  if (threadIdx.x % 32 == 0) shared.segment[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += shared.segment[w];
  return most + log(sum);
}

__global__ void __launch_bounds__(kSampleThreads, 1) score_kernel(EditCall call) {
  __shared__ Shared shared;
  const EditedRow row = call.rows[blockIdx.x];
  if (row.top_num < 0) return;
  const float* const logits = call.logits + int64_t{row.logits_row} * call.vocab_size;
  Key best = block_best_below(logits, call.vocab_size, ~0ull, shared);
  const double log_sum = block_log_sum(logits, call.vocab_size, logits[id_of_key(best)], shared);
  if (threadIdx.x == 0) call.log_sums[blockIdx.x] = log_sum;
  TokenScore* scores = call.scores + row.scores + 1;  // the chosen token's comes later
  for (int i = 0; i < row.top_num && best != 0; ++i) {
    const int id = id_of_key(best);
    if (threadIdx.x == 0) scores[i] = {static_cast<float>(logits[id] - log_sum), id};
    best = block_best_below(logits, call.vocab_size, best, shared);
  }
  scores += row.top_num;
  for (int i = row.wanted_begin + static_cast<int>(threadIdx.x); i < row.wanted_end; i += kSampleThreads) {
    const int id = call.wanted[i];
    const bool known = id >= 0 && id < call.vocab_size;
    scores[i - row.wanted_begin] = {known ? static_cast<float>(logits[id] - log_sum) : -INFINITY, id};
  }
}

// One kind after the other, as an id may have an edit of each.
__global__ void __launch_bounds__(kSampleThreads) edit_kernel(EditCall call) {
  const EditedRow row = call.rows[blockIdx.x];
  float* const logits = call.logits + int64_t{row.logits_row} * call.vocab_size;
  for (int kind = 0; kind < kEditKinds; ++kind) {
    for (int i = row.edits[kind] + static_cast<int>(threadIdx.x); i < row.edits[kind + 1]; i += kSampleThreads) {
      const LogitEdit edit = call.edits[i];
      const float x = logits[edit.id];
      call.old_values[i] = x;
      if (kind == 0) logits[edit.id] = x > 0 ? x / edit.value : x * edit.value;
      if (kind == 1) logits[edit.id] = x - edit.value;
      if (kind == 2) logits[edit.id] = x + edit.value;
    }
    __syncthreads();
  }
}

// A thread has an id of a row.
__global__ void __launch_bounds__(kSampleThreads) mask_kernel(EditCall call) {
  const EditedRow& row = call.rows[blockIdx.y];
  const int id = static_cast<int>(blockIdx.x * kSampleThreads + threadIdx.x);
  if (row.mask < 0 || id >= call.vocab_size) return;
  const uint32_t word = call.masks[int64_t{row.mask} * call.mask_words + id / 32];
  if ((word >> (id % 32) & 1) == 0) call.logits[int64_t{row.logits_row} * call.vocab_size + id] = -INFINITY;
}

// A token that was chosen was not masked; where it was edited, its first edit knows what was there.
__global__ void __launch_bounds__(kSampleThreads) chosen_kernel(EditCall call) {
  __shared__ int first;
  const EditedRow row = call.rows[blockIdx.x];
  if (row.top_num < 0) return;
  const int token = call.tokens[row.token_slot];
  if (token < 0) return;
  if (threadIdx.x == 0) first = row.edits[kEditKinds];
  __syncthreads();
  for (int i = row.edits[0] + static_cast<int>(threadIdx.x); i < row.edits[kEditKinds]; i += kSampleThreads) {
    if (call.edits[i].id == token) atomicMin(&first, i);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const bool edited = first < row.edits[kEditKinds];
  const float raw = edited ? call.old_values[first] : call.logits[int64_t{row.logits_row} * call.vocab_size + token];
  call.scores[row.scores] = {static_cast<float>(raw - call.log_sums[blockIdx.x]), token};
}

}  // namespace
}  // namespace warpweave::gpu
