// Granite 3: Llama's layers with multipliers on the embedding, the scores, what every branch adds, and the logits.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits granite_traits(const ModelConfig& config) {
  FamilyTraits traits = llama_traits(config);
  traits.embedding_scale = static_cast<float>(config.embedding_multiplier);
  traits.attention_scale = static_cast<float>(config.attention_multiplier);
  return traits;
}

}  // namespace warpweave
