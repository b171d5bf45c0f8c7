// StarCoder2: layer norms, biases everywhere, and an MLP without a gate.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits starcoder2_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = traits.o_bias = config.attention_bias;
  traits.mlp_bias = config.mlp_bias;
  traits.layer_norm = true;
  traits.activation = GluActivation::gelu_tanh;
  traits.mlp_names = {.gate = "", .up = "c_fc", .down = "c_proj"};
  return traits;
}

}  // namespace warpweave
