// Jet-Nemotron (Gu et al. 2025, 2508.15884): Qwen2.5's attention in a few layers, some with a window; in the others a
// gated delta rule whose values pass a convolution with weights made of each token.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits jet_nemotron_traits(const ModelConfig& config) { return qwen2_traits(config); }

}  // namespace warpweave
