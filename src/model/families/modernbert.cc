// ModernBERT (Warner et al. 2024): rotated heads, windows on both sides in most layers, a gated MLP.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits modernbert_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = traits.o_bias = config.attention_bias;
  traits.mlp_bias = config.mlp_bias;
  traits.layer_norm = true;
  traits.first_mixer_norm = false;
  traits.activation = GluActivation::gelu;
  traits.attention_names.qkv = "qkv_proj";
  traits.mlp_names = {.gate = "gate_up_proj", .up = "gate_up_proj", .down = "down_proj"};
  return traits;
}

}  // namespace warpweave
