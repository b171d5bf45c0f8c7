// Llama 2/3 and everything of its shape (SmolLM2, Falcon 3, ...); SmolLM3, whose configuration names layers without
// rotation.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits llama_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = traits.o_bias = config.attention_bias;
  traits.mlp_bias = config.mlp_bias;
  return traits;
}

}  // namespace warpweave
