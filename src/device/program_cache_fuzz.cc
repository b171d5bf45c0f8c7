// Any bytes as a cache file: only what program_file wrote for this key is taken for a program.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "device/program_cache.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  for (const std::string_view key : {std::string_view(), std::string_view("key")}) {
    const auto program = warpweave::program_in_file(file, key);
    if (program.ok() && warpweave::program_file(key, *program) != file) abort();
    const std::string whole = warpweave::program_file(key, file);
    const auto back = warpweave::program_in_file(whole, key);
    if (!back.ok() || *back != file) abort();
  }
  return 0;
}
