// The keys of config.json that say what predicts further tokens: a model's own layers for it, and EAGLE3 heads. Called
// by parse_config_json.
#pragma once

#include "model/config.h"
#include "model/config_reader.h"

namespace warpweave {

// Of EAGLE3 heads' `architectures`; sets config.eagle3 where it is one, and config.num_nextn_layers.
void read_drafts(ConfigReader& reader, ModelConfig& config);

}  // namespace warpweave
