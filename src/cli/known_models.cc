#include "cli/known_models.h"

#include "cli/embed.h"

WW_EMBED(known_models, WARPWEAVE_KNOWN_MODELS)

namespace warpweave {

std::string_view known_models_json() { return WW_EMBEDDED(known_models); }

}  // namespace warpweave
