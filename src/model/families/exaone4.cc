// EXAONE 4: norms after the branches and on every head of q and k; where some layers have windows, the others take no
// positions.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits exaone4_traits(const ModelConfig&) {
  FamilyTraits traits;
  traits.norms = kNormsAfter;
  traits.qk_norm = true;
  return traits;
}

}  // namespace warpweave
