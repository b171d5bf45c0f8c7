// Phi-3, Phi-3.5 and Phi-4 (mini, too): Llama's layers with q, k and v in one tensor, gate and up in another; longrope.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits phi3_traits(const ModelConfig&) {
  FamilyTraits traits;
  traits.attention_names.qkv = "qkv_proj";
  traits.mlp_names.gate = traits.mlp_names.up = "gate_up_proj";
  return traits;
}

}  // namespace warpweave
