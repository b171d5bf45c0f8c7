#include "model/gpu_decoder.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <type_traits>

#include "device/cuda/copy.h"
#include "device/cuda/cuda_check.h"
#include "model/dual_chunk.h"
#include "model/families/family.h"
#include "model/layers/gpu_experts_feed_forward.h"
#include "ops/cuda/any_width.h"
#include "ops/cuda/norms.h"

namespace warpweave {

Result<std::unique_ptr<GpuDecoder>> GpuDecoder::create(const ModelConfig& config, const BuildOptions& options,
                                                       GpuDecoderWeights weights, const GpuDecoderLimits& limits) {
  WW_RETURN_IF_ERROR(check_gpu_model(config));
  WW_ASSIGN_OR_RETURN(const FamilyTraits traits, family_traits(config));
  return create(config, traits, options, std::move(weights), limits);
}

Result<std::unique_ptr<GpuDecoder>> GpuDecoder::create(const ModelConfig& config, const FamilyTraits& traits,
                                                       const BuildOptions& options, GpuDecoderWeights weights,
                                                       const GpuDecoderLimits& limits) {
  DecoderSpec spec = decoder_spec(config, traits);
  spec.attention.dual_chunk = dual_chunk_in_use(config, options.max_positions);
  WW_ASSIGN_OR_RETURN(std::unique_ptr<gpu::GpuGemm> gemm, gpu::GpuGemm::create());
  if (limits.batch_invariant) gemm->set_batch_invariant();
  std::unique_ptr<GpuDecoder> out(
      new GpuDecoder(config, std::move(spec), options.dtype, std::move(weights), std::move(gemm)));
  WW_RETURN_IF_ERROR(out->reserve(limits));
  out->make_layers();
  return out;
}

GpuDecoder::GpuDecoder(const ModelConfig& config, DecoderSpec spec, DType dtype, GpuDecoderWeights weights,
                       std::unique_ptr<gpu::GpuGemm> gemm)
    : config_(config),
      spec_(std::move(spec)),
      dtype_(dtype),
      weights_(std::move(weights)),
      gemm_(std::move(gemm)),
      x_(spec_.hidden_size, spec_.norm, dtype, *gemm_) {}

namespace {

// What the layers need at most.
struct Widest {
  int64_t glu_cols = 0, fp8_depth = 0;
  bool experts_in_8_bits = false;
  int routed_and_shared = 0;  // experts that a layer multiplies together
};

// And what the residual stream has to have for them.
Widest find_widest(const GpuDecoderWeights& weights, GpuResidual::Limits& residual) {
  Widest out;
  for (const GpuLayerWeights& layer : weights.layers) {
    layer.each_part([&](const auto& part) { residual.branch_norms |= !part.norms.out.empty(); });
    layer.each_linear([&](const gpu::GpuLinear& linear) {
      if (linear.dtype != DType::fp8_e4m3) return;
      out.fp8_depth = std::max(out.fp8_depth, linear.in_features);
      residual.fp8_blocks |= linear.scaling == gpu::Fp8Scaling::block;
    });
    std::visit([&](const auto& mixer) {
      mixer.each_linear([&](const gpu::GpuLinear& linear) {
        residual.widest_gemm = std::max(residual.widest_gemm, linear.out_features);
      });
    }, layer.mixer);
    if (const auto* dense = std::get_if<GpuDenseWeights>(&layer.feed_forward)) {
      out.glu_cols = std::max(out.glu_cols, dense->down.in_features);
    } else if (const auto* mixture = std::get_if<GpuExpertsWeights>(&layer.feed_forward)) {
      out.glu_cols = std::max(out.glu_cols, mixture->shared_down.in_features);
      out.experts_in_8_bits |= mixture->experts.gate_up.dtype == DType::fp8_e4m3;
      out.routed_and_shared = std::max(out.routed_and_shared, mixture->experts.gate_up.experts);
    }
  }
  return out;
}

}  // namespace

Status GpuDecoder::reserve(const GpuDecoderLimits& limits) {
  const int64_t tokens = round_up_rows(limits.max_tokens), kept_rows = round_up_rows(limits.max_logits_rows);
  GpuResidual::Limits residual;
  residual.tokens = tokens;
  residual.kept_rows = kept_rows;
  residual.widest_gemm = spec_.hidden_size;
  residual.exact_copies = config_.num_experts > 0;
  residual.draft_head = !weights_.fc.empty();
  residual.adapters = limits.adapters;
  residual.max_adapters = limits.max_adapters;
  for (const LayerPlan& layer : spec_.layers) residual.parallel |= layer.parallel;
  const Widest widest = find_widest(weights_, residual);
  const int64_t fp8_depth = std::max(limits.fp8_depth, widest.fp8_depth);
  x_.reserve(residual, workspace_);
  if (spec_.latent.num_heads > 0) {
    WW_RETURN_IF_ERROR(latent_workspace_.reserve(spec_.latent, dtype_, tokens, kept_rows, workspace_));
    latent_workspace_.prefill->decide_by(limits.latent_forms, limits.expands_latent_prefixes);
    if (limits.batch_invariant) latent_workspace_.keep_bits();
  } else {
    attention_workspace_.reserve(spec_.attention, dtype_, tokens, kept_rows, workspace_);
  }
  glu_workspace_.reserve(dtype_, tokens, widest.glu_cols, workspace_);
  WW_RETURN_IF_ERROR(reserve_recurrent(limits));
  if (fp8_depth > 0) WW_RETURN_IF_ERROR(gemm_->reserve_fp8(tokens, fp8_depth));
  kept_layers_ = limits.keep_layers;
  if (limits.keep_hidden || !kept_layers_.empty()) {
    workspace_.get(hidden_, tokens * hidden_width(), dtype_info(dtype_).block_bytes);
  }
  if (limits.keep_hidden) {
    all_rows_.resize(tokens);
    std::iota(all_rows_.begin(), all_rows_.end(), 0);
  }
  WW_RETURN_IF_ERROR(workspace_.status());
  if (config_.num_experts == 0) return {};
  GpuExperts::Options options = {.spec = spec_,
                                 .dtype = dtype_,
                                 .max_rows = tokens,
                                 .ffn = gpu::whole_width(config_.moe_intermediate_size),
                                 .in_8_bits = widest.experts_in_8_bits,
                                 .batch_invariant = limits.batch_invariant,
                                 .dice = limits.routing_dice, .counts = limits.count_experts};
  options.spec.router.shared = std::max(widest.routed_and_shared, config_.num_experts) - config_.num_experts;
  WW_ASSIGN_OR_RETURN(experts_, GpuExperts::create(options, workspace_));
  return {};
}

bool GpuDecoder::take_latent_form(LatentForm form) {
  if (spec_.latent.num_heads == 0 || !latent_workspace_.prefill->can_expand()) return false;
  latent_workspace_.prefill->take(form);
  return true;
}

Status GpuDecoder::commit_states(const GpuCommit& commit, GpuStateCache& states) {
  if (recurrent_mixers_.empty()) return {};
  WW_RETURN_IF_ERROR(recurrent_rows_.start_commit(commit.batch, commit.tree_parents, commit.accepted));
  for (GpuRecurrentMixer* const mixer : recurrent_mixers_) {
    WW_RETURN_IF_ERROR(mixer->commit(states, commit.batch.device.stream));
  }
  return launch_status("committing recurrent states");
}

Status GpuDecoder::reserve_recurrent(const GpuDecoderLimits& limits) {
  const GpuRecurrentLimits recurrent = {.dtype = dtype_,
                                        .state_dtype = limits.state_dtype,
                                        .tokens = round_up_rows(limits.max_tokens),
                                        .kept_rows = round_up_rows(limits.max_logits_rows),
                                        .max_requests = limits.max_requests,
                                        .verify_rows = round_up_rows(limits.max_verify_rows),
                                        .layers = config_.num_recurrent_layers(),
                                        .kernels = limits.linear,
                                        .batch_invariant = limits.batch_invariant};
  for (const GpuLayerWeights& layer : weights_.layers) {  // all such layers are alike
    if (const auto* const gdn = std::get_if<GpuGdnWeights>(&layer.mixer)) {
      recurrent_rows_.reserve(gdn->layer.row_width(), recurrent, workspace_);
      return gdn_workspace_.reserve(*gdn, recurrent, workspace_);
    }
    if (const auto* const conv = std::get_if<GpuShortConvWeights>(&layer.mixer)) {
      recurrent_rows_.reserve(conv->in.out_features, recurrent, workspace_);
      short_conv_workspace_.reserve(*conv, recurrent, workspace_);
      return workspace_.status();
    }
  }
  return {};
}

void GpuDecoder::make_layers() {
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    GpuLayer& layer = layers_.emplace_back();
    layer.parallel = spec_.layers[i].parallel;
    std::visit([&](const auto& part) { layer.mixer = make(part, spec_.layers[i]); }, weights_.layers[i].mixer);
    std::visit([&]<typename Part>(const Part& part) {
      if constexpr (!std::is_same_v<Part, std::monostate>) layer.feed_forward = make(part);
    }, weights_.layers[i].feed_forward);
  }
}

const GpuRope* GpuDecoder::rope_of(const LayerPlan& plan) const {
  return !weights_.ropes.empty() && plan.rope_index >= 0 ? &weights_.ropes[plan.rope_index] : nullptr;
}

std::unique_ptr<GpuMixer> GpuDecoder::make(const GpuAttentionWeights& weights, const LayerPlan& plan) {
  return std::make_unique<GpuAttentionMixer>(weights, plan, rope_of(plan), attention_workspace_);
}
std::unique_ptr<GpuMixer> GpuDecoder::make(const GpuGdnWeights& weights, const LayerPlan&) {
  auto mixer = std::make_unique<GpuGdnMixer>(weights, static_cast<int>(recurrent_mixers_.size()), gdn_workspace_);
  recurrent_mixers_.push_back(mixer.get());
  return mixer;
}
std::unique_ptr<GpuMixer> GpuDecoder::make(const GpuShortConvWeights& weights, const LayerPlan&) {
  auto mixer =
      std::make_unique<GpuShortConvMixer>(weights, static_cast<int>(recurrent_mixers_.size()), short_conv_workspace_);
  recurrent_mixers_.push_back(mixer.get());
  return mixer;
}
std::unique_ptr<GpuMixer> GpuDecoder::make(const GpuLatentWeights& weights, const LayerPlan& plan) {
  return std::make_unique<GpuLatentMixer>(weights, rope_of(plan), latent_workspace_);
}
std::unique_ptr<GpuFeedForward> GpuDecoder::make(const GpuDenseWeights& weights) {
  return std::make_unique<GpuDenseFeedForward>(weights, spec_.activation, glu_workspace_);
}
std::unique_ptr<GpuFeedForward> GpuDecoder::make(const GpuExpertsWeights& weights) {
  return std::make_unique<GpuExpertsFeedForward>(weights, *experts_, glu_workspace_);
}

// What x starts as.
void GpuDecoder::embed(const ForwardBatch& batch, const GpuFutureTokens& futures) {
  gpu::embedding({.table = weights_.embedding,
                  .dtype = dtype_,
                  .ids = batch.device.input_ids,
                  .future_slots = futures.slots,
                  .sampled = futures.sampled,
                  .rows = x_.rows(),
                  .cols = spec_.hidden_size,
                  .scale = spec_.embedding_scale,
                  .out = x_.data()},
                 x_.stream());
}

Status GpuDecoder::place_inputs(std::span<const InputRows> inputs) {
  for (const InputRows& rows : inputs) {
    float* const to = x_.data() + int64_t{rows.row} * spec_.hidden_size;
    WW_RETURN_IF_ERROR(
        copy_async(to, rows.values.data(), rows.values.size_bytes(), x_.stream(), "rows of input_embeds"));
  }
  return {};
}

Status GpuDecoder::write_logits(float* logits) {
  WW_RETURN_IF_ERROR(x_.run_normed(weights_.final_norm, {.linear = &weights_.lm_head, .rows = x_.rows(), .y = logits,
                                                         .y_dtype = DType::f32, .y_stride = spec_.vocab_size}));
  scale_and_cap(logits, x_.rows() * spec_.vocab_size, x_.stream());
  return {};
}

void GpuDecoder::scale_and_cap(float* logits, int64_t count, gpu::Stream stream) {
  if (spec_.logit_scale != 1) gpu::scale(logits, spec_.logit_scale, count, stream);
  if (spec_.final_softcap > 0) gpu::softcap(logits, spec_.final_softcap, count, stream);
}

gpu::GemmCall GpuDecoder::head_call(const HeadRows& rows, const CopiedHead& copy) const {
  const gpu::GpuLinear& lm_head = copy.linear != nullptr ? *copy.linear : weights_.lm_head;
  gpu::GemmCall call = {.linear = &lm_head, .x = rows.x, .rows = rows.count, .x_scales = rows.scales};
  call.y_dtype = DType::f32;
  call.y_stride = lm_head.out_features;
  return call;
}

Status GpuDecoder::head_logits(const HeadRows& rows, float* out, gpu::Stream stream, const CopiedHead& copy) {
  gpu::GemmCall call = head_call(rows, copy);
  call.y = out;
  WW_RETURN_IF_ERROR(head_gemm(copy).run(call, stream));
  scale_and_cap(out, rows.count * call.linear->out_features, stream);
  return {};
}

int GpuDecoder::choice_parts(int64_t count, const CopiedHead& copy) const {
  const bool as_they_are = spec_.logit_scale == 1 && spec_.final_softcap <= 0;
  return as_they_are ? head_gemm(copy).choice_parts(head_call({.count = count}, copy)) : 0;
}

Status GpuDecoder::head_choices(const HeadRows& rows, gpu::TopPart* parts, gpu::Stream stream, const CopiedHead& copy) {
  return head_gemm(copy).run_choice(head_call(rows, copy), parts, stream);
}

Status GpuDecoder::write_hidden() {
  x_.normed(weights_.final_norm, {});
  return copy_async(hidden_, x_.h(), x_.rows() * spec_.hidden_size * dtype_info(dtype_).block_bytes, x_.stream(),
                    "keeping hidden states");
}

// Behind the last part of a layer.
void GpuDecoder::keep_layer(int layer, std::string_view part) {
  const GpuFeedForward* const last = layers_[layer].feed_forward.get();
  if (last != nullptr && part != last->name()) return;
  const float scale = static_cast<float>(config_.residual_multiplier);  // rows are kept divided by it
  for (size_t i = 0; i < kept_layers_.size(); ++i) {
    if (kept_layers_[i] != layer) continue;
    const int64_t at =
        static_cast<int64_t>(i) * spec_.hidden_size * static_cast<int64_t>(dtype_info(dtype_).block_bytes);
    x_.keep_rows_of_layer(static_cast<std::byte*>(hidden_) + at, hidden_width(), scale);
  }
}

Status GpuDecoder::forward(const GpuForward& forward) {
  if (forward.batch.num_tokens == 0) return {};
  ForwardBatch batch = forward.batch;
  const bool keeps_all = !all_rows_.empty() && forward.keep_hidden;
  if (keeps_all) batch.logits_rows = std::span<const int32_t>(all_rows_).first(batch.num_tokens);
  x_.start(batch);
  attention_workspace_.places.positions = forward.rope_positions;
  if (spec_.latent.num_heads > 0) WW_RETURN_IF_ERROR(latent_workspace_.prefill->start(batch, forward.attention));
  if (!recurrent_mixers_.empty()) {
    assert(forward.states != nullptr && batch.device.state_slots != nullptr);
    WW_RETURN_IF_ERROR(recurrent_rows_.start(batch, forward.tree_parents));
  }
  if (!forward.from_rows) embed(batch, forward.futures);
  WW_RETURN_IF_ERROR(place_inputs(forward.inputs));
  const GpuLayerCall call{.batch = batch, .cache = forward.cache, .attention = forward.attention, .x = x_,
                          .recurrent = forward.states};
  WW_RETURN_IF_ERROR(run_layers<OnGpu>(layers_, call, [&](int layer, std::string_view part) {
    if (forward.keep_hidden) keep_layer(layer, part);
  }));
  if (keeps_all) {
    WW_RETURN_IF_ERROR(write_hidden());
    if (!forward.batch.logits_rows.empty()) x_.keep(forward.batch);
  }
  if (!forward.batch.logits_rows.empty() && forward.logits != nullptr) WW_RETURN_IF_ERROR(write_logits(forward.logits));
  return launch_status("a forward step");
}

}  // namespace warpweave
