#include "attention/cuda/plan.h"

#include "attention/cuda/decode_plan.cuh"
#include "attention/cuda/extend_plan.cuh"
#include "attention/cuda/fixed_split_plan.cuh"
#include "attention/cuda/tree_requests.cuh"
#include "attention/cuda/whole_pairs_plan.cuh"

namespace warpweave::cuda {

cudaError_t launch_decode_plan(const PlanInput& input, DecodeWorker* workers, int num_workers,
                               cudaStream_t stream) {
  const int lockstep = lockstep_heads(input.num_kv_heads, num_workers);
  decode_plan<<<1, kPlanThreads, 0, stream>>>(of_lockstep(input, lockstep), workers, num_workers,
                                              num_workers / lockstep, lockstep);
  return cudaPeekAtLastError();
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
