// Gemma (1): Llama's layers with norms that multiply by (1 + weight), a scaled embedding and GELU.
#include <cmath>

#include "model/families/family.h"

namespace warpweave {

FamilyTraits gemma_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = traits.o_bias = config.attention_bias;
  traits.norm_weight_offset = 1;
  traits.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  traits.activation = GluActivation::gelu_tanh;
  return traits;
}

}  // namespace warpweave
