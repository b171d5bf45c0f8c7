// The start of a draft model on the GPU: its weights with the target's, its K/V when the memory that is left is known.
// Only for builds with GPU kernels.
#pragma once

#include "engine/draft_plan.h"
#include "spec/gpu_draft_model.h"

namespace warpweave {

struct GpuDraftSetup {
  int max_requests = 0;            // of a step
  int max_tokens = 0;              // of a step
  int max_step_proposals = 0;      // of a step, of all requests
  int max_pages_per_request = 0;
  int context_len = 0;
  std::vector<int> graph_batch_sizes = {};  // ascending; empty: no graphs
  cudaStream_t stream = nullptr;
  ThreadTeam* team = nullptr;
};

// Weights, activations, the attention backend, and of a head its copy of the output head of `target`; no K/V yet.
Result<GpuDraftParts> load_gpu_draft(const DraftPlan& plan, const GpuDraftSetup& setup, const GpuDecoder& target);

struct GpuDrafter {
  std::unique_ptr<Drafter> drafter;
  GpuDraftModel* model = nullptr;  // the drafter's
};
// K/V for `num_pages`, and the memory of drafts. `target` outlives the drafter.
Result<GpuDrafter> start_gpu_drafter(const DraftPlan& plan, GpuDraftParts parts, int num_pages,
                                     const GpuDraftSetup& setup, GpuDecoder& target);

}  // namespace warpweave
