// Any bytes as config.json or generation_config.json: refused, or within the ranges that the
// decoder relies on.
#include <cmath>
#include <cstdlib>

#include "model/config.h"
#include "model/families/family.h"
#include "model/rope_frequencies.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)warpweave::parse_generation_config_json(text);
  const auto config = warpweave::parse_config_json(text);
  if (!config.ok()) return 0;
  if (config->num_layers < 1 || config->num_kv_heads < 1 || config->head_dim < 2 ||
      config->num_q_heads % config->num_kv_heads != 0 ||
      (!config->sliding_layers.empty() &&
       config->sliding_layers.size() != static_cast<size_t>(config->num_layers))) {
    std::abort();
  }
  if (config->encoder &&
      (config->max_position_embeddings < 1 || config->encoder->first_position < 0 ||
       (config->encoder->learned_positions > 0 &&
        config->encoder->first_position + config->max_position_embeddings > config->encoder->learned_positions))) {
    std::abort();
  }
  for (const warpweave::RopeConfig& rope : {config->rope, config->local_rope.value_or(config->rope)}) {
    for (const double f : warpweave::rope_frequencies(rope, config->rope_head_dim(), config->max_position_embeddings,
                                                      config->max_position_embeddings).inv_freq) {
      if (!std::isfinite(f)) std::abort();
    }
  }
  if (const auto family = warpweave::find_family(config->architecture); family.ok()) {
    (void)family->traits(*config);
  }
  return 0;
}
