// Chains of drafts on their way into the step that verifies them, and what became of them on its way out, one thread a
// request. For draft_kernels.cu, and for its test, which runs it on the host.
#pragma once

#include "spec/cuda/draft_kernels.h"

namespace warpweave::gpu {
namespace {

constexpr int kChainThreads = 64;

__global__ void place_guesses_kernel(PlaceGuessesCall call) {
  const int request = static_cast<int>(blockIdx.x * kChainThreads + threadIdx.x);
  if (request >= call.requests) return;
  for (int guess = 0; guess < call.q_len - 1; ++guess) {
    int32_t token = 0;
    if (guess > 0) {
      token = call.later[int64_t{guess - 1} * call.later_stride + request].token;
    } else {
      const int32_t id = call.first_ids[request];
      token = id >= 0 ? id : call.choices[-1 - id].token;
    }
    const int64_t row = int64_t{request} * call.q_len + guess + 1;
    call.ids[row] = call.copy[row] = token;
  }
}

__global__ void follow_chains_kernel(FollowChainsCall call) {
  const int request = static_cast<int>(blockIdx.x * kChainThreads + threadIdx.x);
  if (request >= call.requests) return;
  const int64_t first = int64_t{request} * call.q_len;
  const int32_t told = call.accepted[request];
  int last = told < 0 ? 0 : told - 1;
  if (told < 0) {
    while (last + 1 < call.q_len && call.sampled[first + last] == call.ids[first + last + 1]) ++last;
  }
  for (int k = 0; k < call.q_len; ++k) {
    // A row that failed has a negative token; what is computed for it is never used.
    const int32_t sampled = call.sampled[first + k] < 0 ? 0 : call.sampled[first + k];
    call.next_ids[first + k] = k < last ? call.ids[first + k + 1] : k == last ? sampled : 0;
  }
  call.last_rows[request] = static_cast<int32_t>(first + last);
}

}  // namespace
}  // namespace warpweave::gpu
