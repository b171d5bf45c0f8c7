#include "model/layer_plan.h"

#include <algorithm>

namespace warpweave {
namespace {

bool has_experts(const ModelConfig& config, int layer) {
  if (config.num_experts == 0 || layer < config.first_k_dense_replace) return false;
  if ((layer + 1) % config.decoder_sparse_step != 0 || layer % config.moe_layer_freq != 0) return false;
  return std::find(config.mlp_only_layers.begin(), config.mlp_only_layers.end(), layer) == config.mlp_only_layers.end();
}

}  // namespace

std::vector<LayerPlan> transformer_layers(const ModelConfig& config) {
  std::vector<LayerPlan> layers(config.num_layers);
  for (int i = 0; i < config.num_layers; ++i) {
    if (config.latent) layers[i].mixer = MixerKind::latent;
    if (!config.recurrent_layers.empty() && config.recurrent_layers[i]) {
      layers[i].mixer = config.short_conv ? MixerKind::short_conv : MixerKind::gated_delta_net;
    }
    if (has_experts(config, i)) layers[i].feed_forward = FeedForwardKind::experts;
    layers[i].parallel = config.parallel_residual;
    if (!config.sliding_layers.empty() && config.sliding_layers[i]) {
      if (config.sliding_window > 0) layers[i].window_left = config.sliding_window - 1;
      if (config.encoder) layers[i].window_right = layers[i].window_left;
      layers[i].rope_index = config.local_rope ? 1 : 0;
    }
    if (!config.nope_layers.empty() && config.nope_layers[i]) layers[i].rope_index = -1;
  }
  return layers;
}

}  // namespace warpweave
