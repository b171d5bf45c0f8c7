#include "attention/cuda/plan.h"

#include "attention/cuda/decode_plan.cuh"
#include "attention/cuda/extend_plan.cuh"
#include "attention/cuda/fixed_split_plan.cuh"
#include "attention/cuda/tree_requests.cuh"
#include "attention/cuda/whole_pairs_plan.cuh"

namespace warpweave::cuda {
namespace {

struct DecodePlans {
  DecodePlanCall calls[kMostDecodePlans];  // of_lockstep()
  int lockstep[kMostDecodePlans];
};

// A CTA a plan.
__global__ void __launch_bounds__(kPlanThreads) decode_plans(const __grid_constant__ DecodePlans plans) {
  const DecodePlanCall& call = plans.calls[blockIdx.x];
  const int lockstep = plans.lockstep[blockIdx.x];
  decode_plan(call.input, call.workers, call.num_workers, call.num_workers / lockstep, lockstep);
  __threadfence();  // before its end lets a successor begin
}

}  // namespace

cudaError_t launch_decode_plans(std::span<const DecodePlanCall> calls, cudaStream_t stream) {
  DecodePlans plans{};
  for (size_t i = 0; i < calls.size(); ++i) {
    plans.lockstep[i] = lockstep_heads(calls[i].input.num_kv_heads, calls[i].num_workers);
    plans.calls[i] = calls[i];
    plans.calls[i].input = of_lockstep(calls[i].input, plans.lockstep[i]);
  }
  decode_plans<<<static_cast<unsigned>(calls.size()), kPlanThreads, 0, stream>>>(plans);
  return cudaPeekAtLastError();
}

cudaError_t launch_decode_plan(const PlanInput& input, DecodeWorker* workers, int num_workers,
                               cudaStream_t stream) {
  const DecodePlanCall call = {input, workers, num_workers};
  return launch_decode_plans({&call, 1}, stream);
}

cudaError_t launch_whole_pairs_plan(const PlanInput& input, DecodeWorker* workers, int num_workers,
                                    cudaStream_t stream) {
  whole_pairs_plan<<<1, kPlanThreads, 0, stream>>>(input, workers, num_workers);
  return cudaPeekAtLastError();
}

cudaError_t launch_extend_plan(const PlanInput& input, ExtendTiles tiles, ExtendItem* items, ExtendHeader* header,
                               cudaStream_t stream) {
  extend_plan<<<1, kPlanThreads, 0, stream>>>(input, tiles.rows, tiles.rows_per_token, items, header);
  return cudaPeekAtLastError();
}

cudaError_t launch_fixed_split_plan(const PlanInput& input, const FixedSplitPlan& plan, cudaStream_t stream) {
  fixed_split_plan<<<1, kPlanThreads, 0, stream>>>(input, plan);
  return cudaPeekAtLastError();
}

cudaError_t launch_tree_requests(const AttentionParams& p, const TreeRequests& out, int first_token, int count,
                                 cudaStream_t stream) {
  tree_requests<<<count, kTreeRequestThreads, 0, stream>>>(p, out, first_token, count);
  return cudaPeekAtLastError();
}

}  // namespace warpweave::cuda
