// A .gguf file as a model: its metadata as ModelConfig and tokenizer fields, its tensors under the
// Hugging Face names that the families know. Rows of q and k that llama.cpp permuted for its own
// rotary layout are put back. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <memory>
#include <string>

#include "model/config.h"
#include "model/weight_source.h"
#include "text/tokenizer.h"

namespace warpweave {

struct GgufModel {
  ModelConfig config;
  std::shared_ptr<WeightSource> weights;
  GgufTokenizerFields tokenizer;
  std::string chat_template;  // empty: none
};

// `data_loss`: the file lies about itself; `unsupported`: an architecture or tensor type not known.
Result<GgufModel> load_gguf_model(const std::string& path);

}  // namespace warpweave
