// gpt-oss: attention sinks, alternating windows, biases everywhere, experts with a clamped SwiGLU.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits gpt_oss_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = traits.o_bias = config.attention_bias;
  traits.sinks = true;
  traits.fused_experts = true;
  traits.activation = GluActivation::swiglu_oai;
  traits.router_norm = RouterNorm::softmax_chosen;
  return traits;
}

}  // namespace warpweave
