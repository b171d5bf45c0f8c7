// LFM2 (Liquid AI 2025), dense or with experts: most layers are gated short convolutions, the others attention with
// normed heads. Experts are chosen by sigmoids with a correction bias.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits lfm2_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qk_norm = true;
  traits.attention_names = {.q_norm = "q_layernorm", .k_norm = "k_layernorm", .o = "out_proj"};
  traits.mlp_names = {.gate = "w1", .up = "w3", .down = "w2", .block = "feed_forward"};
  traits.norms = {.mixer_in = "operator_norm", .feed_forward_in = "ffn_norm"};
  traits.final_norm_name = "model.embedding_norm";
  traits.router = router_rule(config);
  traits.router.score = RouterScore::sigmoid;
  traits.router.sum_epsilon = 1e-6f;
  traits.router.scale = static_cast<float>(config.routed_scaling_factor);
  traits.expert_names = {.block = "feed_forward", .gate = "w1", .up = "w3", .down = "w2", .correction = "expert_bias"};
  return traits;
}

}  // namespace warpweave
