// A decode plan in which no pair (request, unit) is cut, by one CTA: a pair's sums then depend on its own tokens alone,
// not on what else is in the batch. For plan.cu, and for its test, which runs it on the host.
#pragma once

#include "attention/cuda/block_scan.cuh"
#include "attention/cuda/plan_input.h"

namespace warpweave::cuda {
namespace {

// Every request is in the plan, its units one after the other (`lockstep` 1); workers have runs of neighbouring pairs,
// as equal in number as possible. Long requests beside short ones make runs of unequal length.
__global__ void __launch_bounds__(kPlanThreads) whole_pairs_plan(PlanInput in, DecodeWorker* workers, int num_workers) {
  const long long units = in.num_kv_heads, pairs = units * in.num_requests;
  for (int worker = threadIdx.x; worker < num_workers; worker += kPlanThreads) {
    const long long first = worker * pairs / num_workers, last = (worker + 1ll) * pairs / num_workers;
    DecodeWorker run;
    if (first < last) {
      run.request = static_cast<int>(first / units);
      run.head = static_cast<int>(first % units);
      run.q_begin = in.q_indptr[run.request];
      run.q_len = in.q_indptr[run.request + 1] - run.q_begin;
      run.kv_len = in.kv_lens[run.request];
      for (long long pair = first; pair < last;) {
        const long long request = pair / units, next = min(last, (request + 1) * units);
        const int tiles = max(1, (in.kv_lens[request] + in.tile_tokens - 1) / in.tile_tokens);
        run.num_tiles += static_cast<int>(next - pair) * tiles;
        pair = next;
      }
      run.first_pair_begin = run.first_pair_end = run.last_pair_end = worker;
    }
    workers[worker] = run;
  }
}

}  // namespace
}  // namespace warpweave::cuda
