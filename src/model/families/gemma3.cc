// Gemma 3 (text): Gemma 2 with q/k norms instead of softcaps, and a local rope for sliding layers.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits gemma3_traits(const ModelConfig& config) {
  FamilyTraits traits = gemma2_traits(config);
  traits.qk_norm = true;
  return traits;
}

}  // namespace warpweave
