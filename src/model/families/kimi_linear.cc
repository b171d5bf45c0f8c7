// Kimi Linear (Kimi Team 2025): Kimi delta attention in most layers, in the others latent attention whose queries and
// keys are not rotated; experts chosen and weighed as DeepSeek V3's.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits kimi_linear_traits(const ModelConfig& config) {
  FamilyTraits traits = deepseek_v3_traits(config);
  traits.expert_names = {.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"};
  return traits;
}

}  // namespace warpweave
