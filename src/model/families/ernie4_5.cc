// ERNIE 4.5 (dense): Llama's layers, rotated by pairs of neighbours.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits ernie4_5_traits(const ModelConfig& config) {
  FamilyTraits traits = llama_traits(config);
  traits.rope_interleaved = true;
  return traits;
}

}  // namespace warpweave
