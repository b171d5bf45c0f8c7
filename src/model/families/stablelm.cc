// StableLM 2: layer norms, a quarter of a head rotated; in some sizes attention and MLP side by side after one norm.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits stablelm_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = config.attention_bias;
  traits.layer_norm = true;
  if (config.parallel_residual) traits.norms.feed_forward_in = traits.norms.mixer_in;
  return traits;
}

}  // namespace warpweave
