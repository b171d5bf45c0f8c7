#include "engine/latent_plan.h"

#include <fmt/format.h>

#include <string>

#include "attention/tuning.h"
#include "model/layers/latent_prefill_plan.h"

namespace warpweave {
namespace {

constexpr int kMostNewTokens = 8192;
constexpr int kPrefixes[] = {0, 4096, 32768};
constexpr int kCrowd = 16;
// As of a step of kMostNewTokens (model/layers/gpu_latent_prefill.cc).
constexpr int64_t kCapacityRows = 2 * kMostNewTokens;

// "from 97 new tokens, from 300 behind 4096 cached, 16 prompts at once from 40".
std::string crossings(const LatentPrefillShape& shape, int context_len) {
  std::string text;
  for (const int prefix : kPrefixes) {
    if (prefix >= context_len || (prefix > 0 && !shape.expands_prefixes)) break;
    const std::optional<int> first = first_expanded(shape, 1, prefix, kMostNewTokens);
    text += text.empty() ? "" : ", ";
    text += first ? fmt::format("from {} new tokens", *first) : "never";
    if (prefix > 0) text += fmt::format(" behind {} cached", prefix);
  }
  if (!shape.expands_prefixes) text += ", never behind cached ones (--disable-chunked-prefix-cache)";
  if (const std::optional<int> first = first_expanded(shape, kCrowd, 0, kMostNewTokens / kCrowd))
    text += fmt::format(", {} prompts at once from {} each", kCrowd, *first);
  return text;
}

}  // namespace

LatentFormShape latent_form_shape(const ModelConfig& config, KvFormat format) {
  const LatentConfig& latent = *config.latent;
  return {config.num_q_heads, latent.kv_rank, latent.nope_dim, latent.rope_dim, latent.v_dim, format};
}

void plan_latent_forms(const ServerArgs& args, const ModelConfig& config, const ServeTarget& target, ServePlan& plan) {
  const LatentConfig& latent = *config.latent;
  LatentPrefillShape shape = {.num_heads = config.num_q_heads,
                              .rank = latent.kv_rank,
                              .nope_dim = latent.nope_dim,
                              .rope_dim = latent.rope_dim,
                              .v_dim = latent.v_dim,
                              .capacity_rows = kCapacityRows,
                              .expands_prefixes = !args.disable_chunked_prefix_cache};
  Resolved& attention = plan.attention;
  const std::string what = "prompts of latent attention: ";
  const bool kernels = target.hardware.arch == DeviceArch::sm_90 && has_expanded_kernels(shape) &&
                       plan.dtype != DType::f32 && attention.prefill_caps->mla_chunked_prefix;
  if (kernels && attention.deterministic) {
    attention.reasons.push_back(what + "absorbed, one form for all, for --enable-deterministic-inference");
    return;
  }
  if (!kernels) {
    attention.reasons.push_back(what + "absorbed, the only form here");
    return;
  }
  const TuningTable* table = target.tuning != nullptr ? target.tuning : builtin_tuning(target.hardware.name);
  TuningTable::LatentForms found;
  if (table != nullptr) found = table->latent_forms(target.hardware, latent_form_shape(config, attention.kv_format));
  plan.latent_forms = std::move(found.times);
  shape.measured = &plan.latent_forms;
  const std::string expanded = "expanded " + crossings(shape, plan.context_len) + ", else absorbed; ";
  if (!plan.latent_forms.empty()) {
    attention.reasons.push_back(what + expanded + "by the times of both forms measured " + found.measurements);
  } else {
    attention.reasons.push_back(what + expanded +
                                fmt::format("by counting multiplications: no table has times of {} heads with {} KV "
                                            "here; warpweave tune measures them",
                                            config.num_q_heads, kv_format_name(attention.kv_format)));
  }
}

}  // namespace warpweave
