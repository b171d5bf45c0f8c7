// gpt-oss: attention sinks, alternating windows, biases everywhere, experts with a clamped SwiGLU.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits gpt_oss_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = traits.o_bias = config.attention_bias;
  traits.sinks = true;
  traits.fused_experts = true;
  traits.expert_names.router = "router";
  traits.activation = GluActivation::swiglu_oai;
  traits.router = router_rule(config);  // the softmax over the chosen: renormalised
  traits.router.renormalise = true;
  return traits;
}

}  // namespace warpweave
