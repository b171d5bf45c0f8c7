// Command R7B and A: attention and MLP side by side after one layer norm without a bias; the layers with a window
// rotate pairs of neighbours, the others take no positions; scaled logits.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits cohere2_traits(const ModelConfig& config) {
  FamilyTraits traits;
  traits.qkv_bias = traits.o_bias = config.attention_bias;
  traits.layer_norm = true;
  traits.rope_interleaved = true;
  traits.norms.feed_forward_in = traits.norms.mixer_in;
  return traits;
}

}  // namespace warpweave
