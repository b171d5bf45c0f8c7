// Qwen2 and Qwen2.5: Llama's layers with a bias on q, k and v.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits qwen2_traits(const ModelConfig&) {
  FamilyTraits traits;
  traits.qkv_bias = true;
  return traits;
}

}  // namespace warpweave
