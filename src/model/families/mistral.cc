// Mistral: Llama's layers; the sliding window comes from the configuration.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits mistral_traits(const ModelConfig&) { return {}; }

}  // namespace warpweave
