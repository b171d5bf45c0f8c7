// What a model's config.json says about the rotation of q and k: for all layers, for those with a sliding window where
// it differs, and which layers go without. Errors stay with the reader, naming the key and the rule.
#pragma once

#include "model/config.h"
#include "model/config_reader.h"

namespace warpweave {

// Fills rope, local_rope and, for dynamic scaling, the longer context; after the shape, latent attention among it.
// Every rope is held to the rules of its type: it gives finite frequencies at every length.
void read_ropes(ConfigReader& config, ModelConfig& out);

// Fills nope_layers. After sliding_layers, before drop_idle_window().
void read_nope_layers(ConfigReader& config, ModelConfig& out);

// Of families whose layers with full attention take no positions where the others have a window; else empty.
std::vector<bool> nope_beside_windows(const ModelConfig& config);

}  // namespace warpweave
