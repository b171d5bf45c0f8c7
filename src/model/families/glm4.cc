// GLM-4-0414: norms before and after the branches, half of a head rotated by pairs of neighbours, gate and up in one
// tensor.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits glm4_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = config.attention_bias;
  traits.norms.mixer_out = "post_self_attn_layernorm";
  traits.norms.feed_forward_out = "post_mlp_layernorm";
  traits.rope_interleaved = true;
  traits.mlp_names.gate = traits.mlp_names.up = "gate_up_proj";
  return traits;
}

}  // namespace warpweave
