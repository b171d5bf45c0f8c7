// Qwen1.5-MoE and Qwen2-MoE: Qwen2's attention; beside the chosen experts a shared one behind a sigmoid gate.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits qwen2_moe_traits(const ModelConfig& config) {
  FamilyTraits traits = qwen2_traits(config);
  traits.qkv_bias = config.attention_bias;
  traits.router = router_rule(config);
  traits.expert_names.shared = "shared_expert";
  traits.shared_expert_gate = true;
  return traits;
}

}  // namespace warpweave
