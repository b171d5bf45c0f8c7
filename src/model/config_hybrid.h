// The keys of config.json that say which layers keep a state in place of K/V, and what they are. Called by
// parse_config_json.
#pragma once

#include "model/config.h"
#include "model/config_reader.h"

namespace warpweave {

// Sets config.recurrent_layers and what describes them (config.linear, config.short_conv) for families that have such
// layers; needs the model's shape and its ropes, which Kimi Linear has none of.
void read_recurrent_layers(ConfigReader& reader, ModelConfig& config);

// LFM2's feed-forward width, which its files give before it is made two thirds and rounded up.
int adjusted_intermediate_size(ConfigReader& reader, int intermediate_size);

}  // namespace warpweave
