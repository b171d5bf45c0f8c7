// Qwen3: Llama's layers with a norm on every head of q and k.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits qwen3_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = traits.o_bias = config.attention_bias;
  traits.qk_norm = true;
  return traits;
}

}  // namespace warpweave
