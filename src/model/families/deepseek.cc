// DeepSeek V2 (Lite, too) and V3 (R1, Kimi-K2): latent attention, shared experts, experts chosen from the best groups.
#include <cmath>

#include "model/families/family.h"

namespace warpweave {
namespace {

// YaRN's correction of the softmax for stretched contexts (2309.00071), as these models were trained with it: squared,
// by mscale_all_dim, where the rotary tables carry what mscale adds to it.
float attention_scale(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  double stretch = 1;
  if (rope.type == RopeConfig::Type::yarn && rope.factor > 1) {
    stretch = 0.1 * rope.mscale_all_dim.value_or(0) * std::log(rope.factor) + 1;
  }
  return static_cast<float>(stretch * stretch / std::sqrt(static_cast<double>(config.latent->qk_dim())));
}

FamilyTraits deepseek_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.latent_bias = traits.o_bias = config.attention_bias;
  if (config.latent) traits.attention_scale = attention_scale(config);
  traits.router = router_rule(config);
  traits.router.score = config.sigmoid_scores ? RouterScore::sigmoid : RouterScore::softmax;
  traits.router.sum_epsilon = 1e-20f;
  traits.router.scale = static_cast<float>(config.routed_scaling_factor);
  traits.router.groups = config.n_group;
  traits.router.kept_groups = config.topk_group;
  return traits;
}

}  // namespace

// Weights are either divided by their sum or scaled.
FamilyTraits deepseek_v2_traits(const ModelConfig& config) {
  FamilyTraits traits = deepseek_traits(config);
  if (traits.router.renormalise) traits.router.scale = 1;
  return traits;
}

// A correction bias moves the choice, and a group counts by its best two.
FamilyTraits deepseek_v3_traits(const ModelConfig& config) {
  FamilyTraits traits = deepseek_traits(config);
  traits.router.group_score = GroupScore::best_two;
  return traits;
}

}  // namespace warpweave
