// Gemma 2: norms around both branches, softcaps, alternating sliding windows, scaled embedding.
#include <cmath>

#include "model/families/family.h"

namespace warpweave {

FamilyTraits gemma2_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = traits.o_bias = config.attention_bias;
  traits.branch_norms = true;
  traits.norm_weight_offset = 1;
  traits.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  const double scalar = config.query_pre_attn_scalar > 0 ? config.query_pre_attn_scalar : config.head_dim;
  traits.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  traits.activation = GluActivation::gelu_tanh;
  return traits;
}

}  // namespace warpweave
