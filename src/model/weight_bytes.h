// How many bytes a model's weights take as they are served, from its configuration alone.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace warpweave {

// Of all matrices in `dtype`, or those of the layers in 8 bits with their scales where the checkpoint has them so.
// Vectors are left out: a thousandth. 0 for what is not known by configuration: unknown families, blocks of GGUF files.
int64_t weight_bytes(const ModelConfig& config, DType dtype);

}  // namespace warpweave
