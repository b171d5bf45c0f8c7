// HunYuan (dense): Llama's layers with a norm on every head of q and k after the rotation.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits hunyuan_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = traits.o_bias = config.attention_bias;
  traits.qk_norm = traits.qk_norm_after_rope = true;
  traits.attention_names.q_norm = "query_layernorm";
  traits.attention_names.k_norm = "key_layernorm";
  return traits;
}

}  // namespace warpweave
