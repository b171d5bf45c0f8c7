// Qwen3.5, its language model: Qwen3-Next's layers, dense or with experts, and other names. Rows of text have one
// position in all parts of its rotation, which is then the plain one.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits qwen3_5_traits(const ModelConfig& config) {
  FamilyTraits traits = qwen3_next_traits(config);
  traits.split_linear_input = true;
  traits.joined_gates = false;
  traits.stacked_experts = true;
  return traits;
}

}  // namespace warpweave
