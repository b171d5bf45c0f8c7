// Any bytes as a safetensors file: refused, or every tensor lies inside them.
#include <cstdlib>
#include <string_view>

#include "model/weight_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const auto tensors = warpweave::parse_safetensors(file, "fuzz.safetensors");
  if (!tensors.ok()) return 0;
  for (const auto& [name, view] : *tensors) {
    const auto* begin = static_cast<const char*>(view.data);
    if (begin < file.data() || view.size_bytes() > size_t(file.data() + size - begin)) std::abort();
  }
  return 0;
}
