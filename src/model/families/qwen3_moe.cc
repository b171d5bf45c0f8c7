// Qwen3-MoE: Qwen3's attention; the MLP is a mixture of experts.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits qwen3_moe_traits(const ModelConfig& config) {
  FamilyTraits traits = qwen3_traits(config);
  traits.router = router_rule(config);
  return traits;
}

}  // namespace warpweave
