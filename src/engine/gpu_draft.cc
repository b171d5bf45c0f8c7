#include "engine/gpu_draft.h"

#include <algorithm>

#include "attention/hybrid.h"
#include "base/log.h"
#include "model/families/family.h"
#include "model/fp8_weights.h"
#include "ops/cuda/fp8.h"
#include "spec/drafter.h"

namespace warpweave {
namespace {

// Rows of a pass that choices are made for: the last one of each request, or a tree's newest nodes.
int max_level_rows(const DraftOptions& options, const GpuDraftSetup& setup) {
  const int drafting = std::min(setup.max_requests, setup.max_step_proposals / options.max_proposals());
  return std::max(setup.max_requests, options.topk * drafting);
}

// In 8 bits where the plan says so and all of them are numbers.
Result<GpuDecoderWeights> load_head(const DraftPlan& plan, const FamilyTraits& traits, const BuildOptions& build,
                                    ThreadTeam& team) {
  const auto load = [&](std::shared_ptr<WeightSource> source) {
    auto head_weights = draft_head_weights(*plan.head, plan.config, std::move(source));
    return load_gpu_draft_head(plan.config, traits, std::move(head_weights), build, team);
  };
  if (!plan.rounds_weights || !gpu::keeps_fp8()) return load(plan.weights);
  Result<GpuDecoderWeights> rounded = load(quantize_weights_fp8(plan.weights, plan.config.fp8));
  if (rounded.ok() || rounded.status().code() != StatusCode::data_loss) return rounded;
  LOG_WARN("the draft model stays in {}: {}", dtype_info(plan.dtype).name, rounded.status().message());
  return load(plan.weights);
}

// What a head without one of its own reads in place of the target's, if it does not read that itself.
Status copy_head_of(const GpuDecoder& target, const DraftPlan& plan, const GpuDraftSetup& setup, GpuDraftParts& parts) {
  const gpu::GpuLinear& whole = target.weights().lm_head;
  const int64_t rows = plan.tokens.empty() ? whole.out_features : static_cast<int64_t>(plan.tokens.size());
  const bool in_8_bits = plan.head_in_8_bits && rounds_head(whole, rows);
  if (plan.tokens.empty() && !in_8_bits) return {};
  WW_ASSIGN_OR_RETURN(parts.head, copy_head(whole, plan.tokens, in_8_bits, setup.stream));
  return {};
}

}  // namespace

Result<GpuDraftParts> load_gpu_draft(const DraftPlan& plan, const GpuDraftSetup& setup, const GpuDecoder& target) {
  GpuDraftParts parts;
  const BuildOptions build = {.dtype = plan.dtype, .max_positions = setup.context_len, .progress = {}};
  GpuDecoderLimits limits = {.max_tokens = setup.max_tokens,
                             .max_logits_rows = max_level_rows(plan.options, setup),
                             .max_requests = setup.max_requests};
  parts.kind = plan.head;
  parts.tokens = plan.tokens;
  if (plan.head) {
    WW_ASSIGN_OR_RETURN(const FamilyTraits traits, draft_head_traits(*plan.head, plan.config, *plan.weights));
    WW_ASSIGN_OR_RETURN(GpuDecoderWeights weights, load_head(plan, traits, build, *setup.team));
    if (weights.lm_head.empty()) WW_RETURN_IF_ERROR(copy_head_of(target, plan, setup, parts));
    if (parts.head.linear.dtype == DType::fp8_e4m3) limits.fp8_depth = parts.head.linear.in_features;
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
