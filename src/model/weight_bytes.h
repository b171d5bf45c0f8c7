// How many bytes a model's weights take as they are served, from its configuration alone.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace warpweave {

struct ServedWeights {
  DType dtype = DType::bf16;
  bool in_8_bits = false;  // matrices of the layers, but for routers and experts stored in one tensor
};

// Of all matrices. Vectors are left out, scales of rows among them: a thousandth. 0 for what is not known by
// configuration: unknown families, blocks of GGUF files.
int64_t weight_bytes(const ModelConfig& config, const ServedWeights& served);

}  // namespace warpweave
