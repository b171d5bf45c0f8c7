// The files of models/tale-llama inside the program, so that the binary alone can serve.
#pragma once

#include <span>
#include <string_view>

namespace warpweave {

struct EmbeddedFile {
  const char* name;        // "config.json"
  std::string_view bytes;  // lives as long as the program
};

std::span<const EmbeddedFile> embedded_model();

}  // namespace warpweave
