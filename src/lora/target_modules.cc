#include "lora/target_modules.h"

#include <set>

#include "model/build_decoder.h"
#include "model/families/family.h"

namespace warpweave {
namespace {

void add_attention(const ModelConfig& config, const FamilyTraits& traits, std::vector<LoraModule>& out) {
  const int64_t q = int64_t{config.num_q_heads} * config.head_dim, kv = int64_t{config.num_kv_heads} * config.head_dim;
  const int64_t hidden = config.hidden_size;
  const std::string prefix = "self_attn.";
  if (*traits.attention_names.qkv != '\0') {
    out.push_back({prefix + traits.attention_names.qkv, LoraSite::qkv, 0, q + 2 * kv, hidden});
  } else {
    // With an output gate q_proj's rows stand in another order than the GEMM's columns.
    if (!traits.attention_gate) out.push_back({prefix + "q_proj", LoraSite::qkv, 0, q, hidden});
    out.push_back({prefix + "k_proj", LoraSite::qkv, q, kv, hidden});
    out.push_back({prefix + "v_proj", LoraSite::qkv, q + kv, kv, hidden});
  }
  out.push_back({prefix + traits.attention_names.o, LoraSite::o, 0, hidden, q});
}

void add_dense(const ModelConfig& config, const MlpNames& names, std::vector<LoraModule>& out) {
  const int64_t hidden = config.hidden_size, ffn = config.intermediate_size;
  const std::string prefix = std::string(names.block) + ".", gate = names.gate, up = names.up;
  if (gate == up) {
    out.push_back({prefix + up, LoraSite::gate_up, 0, 2 * ffn, hidden});
  } else {
    if (!gate.empty()) out.push_back({prefix + gate, LoraSite::gate_up, 0, ffn, hidden});
    out.push_back({prefix + up, LoraSite::gate_up, gate.empty() ? 0 : ffn, ffn, hidden});
  }
  out.push_back({prefix + names.down, LoraSite::down, 0, hidden, ffn});
}

}  // namespace

std::vector<std::string> LoraTargets::names() const {
  std::set<std::string> names;
  for (const auto& layer : layers) {
    for (const LoraModule& module : layer) names.emplace(module.name());
  }
  return {names.begin(), names.end()};
}

int64_t LoraTargets::adapter_bytes(int rank, int64_t element_bytes) const {
  int64_t values = 0;
  for (const auto& layer : layers) {
    for (const LoraModule& module : layer) values += (module.in_features + module.columns) * rank;
  }
  return values * element_bytes;
}

Result<LoraTargets> lora_targets(const ModelConfig& config) {
  WW_ASSIGN_OR_RETURN(const FamilyTraits traits, family_traits(config));
  LoraTargets out;
  out.model = config.architecture;
  for (const LayerPlan& layer : traits.layers) {
    std::vector<LoraModule>& modules = out.layers.emplace_back();
    if (layer.mixer == MixerKind::attention) add_attention(config, traits, modules);
    if (layer.feed_forward == FeedForwardKind::dense) add_dense(config, traits.mlp_names, modules);
  }
  if (out.names().empty()) {
    return Status::unsupported(config.architecture +
                                   " has no layer that adapters can change here (attention over K and V, "
                                   "dense feed-forwards); merge the adapter into the model",
                               "--enable-lora");
  }
  return out;
}

}  // namespace warpweave
