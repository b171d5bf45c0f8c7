// known_models.json inside the program: {"owner/name": {keys of its config.json}}.
#pragma once

#include <string_view>

namespace warpweave {

std::string_view known_models_json();

}  // namespace warpweave
