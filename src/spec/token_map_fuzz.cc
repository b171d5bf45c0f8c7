// Any bytes as a token map: refused, or ids in order and of the vocabulary.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "spec/token_map.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int kVocab = 1000;
  const auto map = warpweave::parse_token_map({reinterpret_cast<const char*>(data), size}, kVocab);
  if (!map.ok()) return 0;
  int32_t last = -1;
  for (const int32_t id : *map) {
    if (id <= last || id >= kVocab) std::abort();
    last = id;
  }
  return 0;
}
