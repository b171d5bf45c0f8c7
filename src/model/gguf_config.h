// The metadata of a GGUF file as ModelConfig (config.h): what llama.cpp's converter writes, and what shows only in
// which tensors there are. Errors name the key, the rule and the value. Pure.
#pragma once

#include "model/config.h"
#include "model/gguf.h"
#include "model/gguf_arch.h"

namespace warpweave {

// `data_loss`: a value that is missing or out of range; `unsupported`: something that does not run here.
Result<ModelConfig> read_gguf_config(const GgufContents& file, const GgufArch& arch);

}  // namespace warpweave
