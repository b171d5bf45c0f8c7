// Seed-OSS: Llama's layers with a bias on q, k and v, and one on o only where the file says so.
#include "model/families/family.h"

namespace warpweave {

FamilyTraits seed_oss_traits(const ModelConfig& config) {
  FamilyTraits traits = llama_traits(config);
  traits.o_bias = config.attention_out_bias;
  return traits;
}

}  // namespace warpweave
