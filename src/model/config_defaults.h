// What a config.json means by the keys that it leaves out. transformers writes a key only where its value is not the
// family's own default, and files written by hand follow it; a family's default is seldom 0 or false.
#pragma once

#include <nlohmann/json.hpp>

namespace warpweave {

// Adds to `config`, an object, the defaults of its "model_type" for keys that are absent; null stays null. None for
// another type; of sizes only the number of K and V heads, as the others must stand in the file.
void add_config_defaults(nlohmann::json& config);

}  // namespace warpweave
