// Phi-3.5-MoE: layer norms and biases, experts chosen by SparseMixer, longrope.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits phimoe_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = traits.o_bias = config.attention_bias;
  traits.layer_norm = true;
  traits.router = router_rule(config);
  traits.router.score = RouterScore::sparse_mixer;
  traits.router.jitter = static_cast<float>(config.router_jitter_noise);
  traits.expert_names = {.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"};
  return traits;
}

}  // namespace warpweave
