#include "cli/embedded_model.h"

#include "cli/embed.h"

// WARPWEAVE_EMBED_DIR is the model's folder.
#define WW_FILE(symbol, file) EmbeddedFile { file, WW_EMBEDDED(symbol) }

WW_EMBED(config, WARPWEAVE_EMBED_DIR "/config.json")
WW_EMBED(generation_config, WARPWEAVE_EMBED_DIR "/generation_config.json")
WW_EMBED(tokenizer, WARPWEAVE_EMBED_DIR "/tokenizer.json")
WW_EMBED(tokenizer_config, WARPWEAVE_EMBED_DIR "/tokenizer_config.json")
WW_EMBED(weights, WARPWEAVE_EMBED_DIR "/model.safetensors")

namespace warpweave {

std::span<const EmbeddedFile> embedded_model() {
  static const EmbeddedFile files[] = {
      WW_FILE(config, "config.json"),
      WW_FILE(generation_config, "generation_config.json"),
      WW_FILE(tokenizer, "tokenizer.json"),
      WW_FILE(tokenizer_config, "tokenizer_config.json"),
      WW_FILE(weights, "model.safetensors"),
  };
  return files;
}

}  // namespace warpweave
