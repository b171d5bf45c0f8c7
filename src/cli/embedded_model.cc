#include "cli/embedded_model.h"

// The assembler copies each file into read-only data; WARPWEAVE_EMBED_DIR is its folder.
#define WW_EMBED(symbol, file)                                              \
  asm(".section .rodata\n.balign 64\n.global ww_" #symbol "\nww_" #symbol   \
      ":\n.incbin \"" WARPWEAVE_EMBED_DIR "/" file "\"\n.global ww_" #symbol \
      "_end\nww_" #symbol "_end:\n.byte 0\n.previous\n");                   \
  extern "C" const char ww_##symbol[];                                      \
  extern "C" const char ww_##symbol##_end[];
#define WW_FILE(symbol, file) \
  EmbeddedFile { file, {ww_##symbol, static_cast<size_t>(ww_##symbol##_end - ww_##symbol)} }

WW_EMBED(config, "config.json")
WW_EMBED(generation_config, "generation_config.json")
WW_EMBED(tokenizer, "tokenizer.json")
WW_EMBED(tokenizer_config, "tokenizer_config.json")
WW_EMBED(weights, "model.safetensors")

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
