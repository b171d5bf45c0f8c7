// OLMoE: Llama's layers with experts, and a norm over all of q and all of k.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits olmoe_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = traits.o_bias = config.attention_bias;
  traits.qk_norm = traits.wide_qk_norm = true;
  traits.router = router_rule(config);
  return traits;
}

}  // namespace warpweave
