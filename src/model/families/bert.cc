// BERT (Devlin et al. 2018) and RoBERTa: norms of the rows after each branch, biases everywhere, an MLP without a gate.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits bert_traits(const ModelConfig&) {
  FamilyTraits traits;
  traits.qkv_bias = traits.o_bias = traits.mlp_bias = true;
  traits.layer_norm = true;
  traits.norms = kNormsOfRows;
  traits.final_norm = false;
  traits.activation = GluActivation::gelu;
  traits.mlp_names.gate = "";
  return traits;
}

}  // namespace warpweave
