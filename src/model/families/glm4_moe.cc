// GLM-4.5 and later: sigmoid router with a correction bias and groups, shared experts, half of a head rotated.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits glm4_moe_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = config.attention_bias;
  traits.qk_norm = config.use_qk_norm;
  traits.router = router_rule(config);
  traits.router.score = RouterScore::sigmoid;
  traits.router.sum_epsilon = 1e-20f;
  traits.router.scale = static_cast<float>(config.routed_scaling_factor);
  traits.router.groups = config.n_group;
  traits.router.kept_groups = config.topk_group;
  traits.router.group_score = GroupScore::best_two;
  return traits;
}

}  // namespace warpweave
