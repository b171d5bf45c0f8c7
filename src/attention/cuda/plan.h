// Plans made on the device, by one CTA each, from the lengths in the batch's device arrays: nothing
// is planned on the host, so a graph that holds these launches replays with any lengths.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "attention/cuda/plan_input.h"
#include "attention/cuda/tree_requests.h"

namespace warpweave::cuda {

struct DecodePlanCall {
  PlanInput input;
  DecodeWorker* workers = nullptr;
  int num_workers = 0;
};
inline constexpr int kMostDecodePlans = 16;

// Each cuts decode work into runs for `num_workers` workers. Requests have at least one query token. Any kernel
// behind them, also one that begins early, finds them made.
cudaError_t launch_decode_plans(std::span<const DecodePlanCall> calls, cudaStream_t stream);
cudaError_t launch_decode_plan(const PlanInput& input, DecodeWorker* workers, int num_workers,
                               cudaStream_t stream);

// The same without cuts: each pair of a request and one of num_kv_heads is one worker's. Requests see all of their
// tokens up to their own (no window); the kernel's heads do not go in lockstep.
cudaError_t launch_whole_pairs_plan(const PlanInput& input, DecodeWorker* workers, int num_workers,
                                    cudaStream_t stream);

struct ExtendTiles {
  int rows = 0;            // of a tile
  int rows_per_token = 1;  // of a query token
};

// Lists the tiles, longest KV range first. `items` holds at least sum(ceil(q_len * rows_per_token / rows)) entries.
cudaError_t launch_extend_plan(const PlanInput& input, ExtendTiles tiles, ExtendItem* items, ExtendHeader* header,
                               cudaStream_t stream);

// Plans fixed splits.
cudaError_t launch_fixed_split_plan(const PlanInput& input, const FixedSplitPlan& plan, cudaStream_t stream);

// Of `count` query tokens from `first_token` on.
cudaError_t launch_tree_requests(const AttentionParams& p, const TreeRequests& out, int first_token, int count,
                                 cudaStream_t stream);

}  // namespace warpweave::cuda
