// OLMo 2 and 3: norms after the branches in place of before them, and over all of q and all of k. OLMo 3 has windows in
// three of four layers, whose rotation is not stretched.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits olmo2_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = traits.o_bias = config.attention_bias;
  traits.norms = kNormsAfter;
  traits.qk_norm = traits.wide_qk_norm = true;
  return traits;
}

}  // namespace warpweave
