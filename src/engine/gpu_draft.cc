#include "engine/gpu_draft.h"

#include <algorithm>

#include "attention/hybrid.h"
#include "model/families/family.h"
#include "spec/drafter.h"

namespace warpweave {
namespace {

// Rows of a pass that choices are made for: the last one of each request, or a tree's newest nodes.
int max_level_rows(const DraftOptions& options, const GpuDraftSetup& setup) {
  const int drafting = std::min(setup.max_requests, setup.max_step_proposals / options.max_proposals());
  return std::max(setup.max_requests, options.topk * drafting);
}

}  // namespace

Result<GpuDraftParts> load_gpu_draft(const DraftPlan& plan, const GpuDraftSetup& setup) {
  GpuDraftParts parts;
  const BuildOptions build = {.dtype = plan.dtype, .max_positions = setup.context_len, .progress = {}};
  const GpuDecoderLimits limits = {.max_tokens = setup.max_tokens,
                                   .max_logits_rows = max_level_rows(plan.options, setup),
                                   .max_requests = setup.max_requests};
  parts.kind = plan.head;
  if (plan.head) {
    WW_ASSIGN_OR_RETURN(const FamilyTraits traits, draft_head_traits(*plan.head, plan.config, *plan.weights));
    WW_ASSIGN_OR_RETURN(GpuDecoderWeights weights,
                        load_gpu_draft_head(*plan.head, plan.config, traits, plan.weights, build, *setup.team));
    WW_ASSIGN_OR_RETURN(parts.model, GpuDecoder::create(plan.config, traits, build, std::move(weights), limits));
  } else {
    WW_ASSIGN_OR_RETURN(GpuDecoderWeights weights, load_gpu_weights(plan.config, plan.weights, build, *setup.team));
    WW_ASSIGN_OR_RETURN(parts.model, GpuDecoder::create(plan.config, build, std::move(weights), limits));
  }
  WW_ASSIGN_OR_RETURN(parts.attention,
                      create_resolved_backend(plan.attention, {.team = setup.team,
                                                               .max_context_len = setup.context_len,
                                                               .page_size = plan.attention.page_size}));
  return parts;
}

Result<GpuDrafter> start_gpu_drafter(const DraftPlan& plan, GpuDraftParts parts, int num_pages,
                                     const GpuDraftSetup& setup, GpuDecoder& target) {
  WW_ASSIGN_OR_RETURN(GpuKvCache cache, GpuKvCache::create(draft_cache_shape(plan, num_pages)));
  parts.cache = std::make_unique<GpuKvCache>(std::move(cache));
  parts.tokens = plan.tokens;
  const int num_slots = kDraftSlotsPerRequest * setup.max_requests, level_rows = max_level_rows(plan.options, setup);
  const GpuDraftLimits limits = {.options = plan.options,
                                 .max_requests = setup.max_requests,
                                 .max_tokens = setup.max_tokens,
                                 .max_level_rows = level_rows,
                                 .max_kept_rows = num_slots + Drafter::kept_rows(plan.options, level_rows),
                                 .max_pages_per_request = setup.max_pages_per_request,
                                 .graph_batch_sizes = setup.graph_batch_sizes};
  WW_ASSIGN_OR_RETURN(std::unique_ptr<GpuDraftModel> model,
                      GpuDraftModel::create(std::move(parts), limits, target, setup.stream));
  GpuDrafter out;
  out.model = model.get();
  out.drafter = std::make_unique<Drafter>(std::move(model), plan.options, num_slots, plan.cache_group);
  return out;
}

}  // namespace warpweave
