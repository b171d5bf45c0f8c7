// Qwen3-Next: most layers are gated delta nets; the others have attention whose result passes a gate of its own.
// Experts as Qwen2-MoE's. All norms but the one in a gated delta net multiply by (1 + weight).
#include "model/families/family.h"

namespace warpweave {

FamilyTraits qwen3_next_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = traits.o_bias = config.attention_bias;
  traits.qk_norm = true;
  traits.attention_gate = true;
  traits.norm_weight_offset = 1;
  traits.router = router_rule(config);
  traits.expert_names.shared = "shared_expert";
  traits.shared_expert_gate = true;
  traits.split_linear_input = traits.joined_gates = config.linear && config.linear->split_input;
  return traits;
}

}  // namespace warpweave
