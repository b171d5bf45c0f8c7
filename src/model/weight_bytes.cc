#include "model/weight_bytes.h"

#include "model/families/family.h"

namespace warpweave {
namespace {

int64_t attention_elements(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size, heads = config.num_q_heads;
  if (!config.latent)
    return hidden * config.head_dim * ((is_gated_hybrid(config.model_type) ? 3 : 2) * heads + 2 * config.num_kv_heads);
  const LatentConfig& latent = *config.latent;
  const int64_t q = heads * latent.qk_dim();
  const int64_t queries = latent.q_rank > 0 ? latent.q_rank * (hidden + q) : hidden * q;
  return queries + hidden * latent.token_dim() + heads * (latent.nope_dim + latent.v_dim) * latent.kv_rank +
         hidden * heads * latent.v_dim;
}

// Three parts in, one out.
int64_t short_conv_elements(const ModelConfig& config) { return int64_t{4} * config.hidden_size * config.hidden_size; }

// q, k, v, z, the output, and the rows of two gates; in KDA z and one of them come through low ranks.
int64_t linear_elements(const ModelConfig& config) {
  const LinearAttnConfig& linear = *config.linear;
  const int64_t keys = int64_t{linear.k_heads} * linear.k_dim, values = int64_t{linear.v_heads} * linear.v_dim;
  if (linear.channel_decay) {
    const int64_t down = int64_t{2} * linear.k_dim * config.hidden_size, up = linear.k_dim * (keys + values);
    return config.hidden_size * (2 * keys + 2 * values + linear.v_heads) + down + up;
  }
  const int64_t generator = linear.generator_rank * (config.hidden_size + values * linear.conv_width);
  return config.hidden_size * (2 * keys + 3 * values + 2 * linear.v_heads) + generator;
}

int64_t mixer_elements(const ModelConfig& config, MixerKind mixer) {
  switch (mixer) {
    case MixerKind::gated_delta_net: return linear_elements(config);
    case MixerKind::short_conv: return short_conv_elements(config);
    case MixerKind::attention:
    case MixerKind::latent: break;
  }
  return attention_elements(config);
}

int64_t experts_elements(const ModelConfig& config) {
  const int64_t widths =
      int64_t{config.num_experts} * config.moe_intermediate_size + config.shared_expert_intermediate_size;
  return 3 * config.hidden_size * widths;
}

}  // namespace

int64_t weight_bytes(const ModelConfig& config, const ServedWeights& served) {
  const Result<Family> family = find_family(config.architecture);
  if (!family.ok() || is_quantized(config.dtype)) return 0;
  const bool one_tensor = family->traits(config).fused_experts;
  int64_t projections = 0, others = 0;
  for (const LayerPlan& layer : transformer_layers(config)) {
    projections += mixer_elements(config, layer.mixer);
    switch (layer.feed_forward) {
      case FeedForwardKind::none: break;
      case FeedForwardKind::dense: projections += int64_t{3} * config.hidden_size * config.intermediate_size; break;
      case FeedForwardKind::experts:
        (one_tensor ? others : projections) += experts_elements(config);
        others += int64_t{config.num_experts} * config.hidden_size;
        break;
    }
  }
  others += int64_t{config.tie_word_embeddings ? 1 : 2} * config.vocab_size * config.hidden_size;
  const int64_t element = static_cast<int64_t>(dtype_info(served.dtype).block_bytes);
  if (!served.in_8_bits) return element * (projections + others);
  const int64_t block = int64_t{config.fp8.block_rows} * config.fp8.block_cols;
  const int64_t scales = block > 0 ? projections / block * static_cast<int64_t>(sizeof(float)) : 0;
  return projections + scales + element * others;
}

}  // namespace warpweave
