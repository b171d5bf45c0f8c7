// Mixtral: Mistral's layers with experts; the chosen are weighed by the softmax among themselves.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits mixtral_traits(const ModelConfig& config) {
  FamilyTraits traits = mistral_traits(config);
  traits.router = router_rule(config);
  traits.router.renormalise = true;
  traits.expert_names = {.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"};
  return traits;
}

}  // namespace warpweave
