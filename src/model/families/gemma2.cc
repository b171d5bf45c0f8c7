// Gemma 2: norms around both branches, softcaps, alternating sliding windows, scaled embedding.
#include <cmath>

#include "model/families/family.h"

namespace warpweave {

FamilyTraits gemma2_traits(const ModelConfig& config) {
  FamilyTraits traits = gemma_traits(config);
  traits.norms = {.mixer_out = "post_attention_layernorm", .feed_forward_in = "pre_feedforward_layernorm",
                  .feed_forward_out = "post_feedforward_layernorm"};
  const double scalar = config.query_pre_attn_scalar > 0 ? config.query_pre_attn_scalar : config.head_dim;
  traits.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  return traits;
}

}  // namespace warpweave
