// The GGUF container, versions 2 and 3: typed metadata and tensor views, every count and offset
// checked before use. Views point into the bytes parsed; strings are copied.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "warpweave/status.h"
#include "warpweave/tensor.h"

namespace warpweave {

// Integers of any width are int64 (u64 beyond it is refused), floats double.
using GgufValue = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>>;

struct GgufContents {
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::map<std::string, TensorView, std::less<>> tensors;  // dims in row-major order, rows first

  template <typename T>
  const T* get(std::string_view key) const {
    const auto it = metadata.find(key);
    return it == metadata.end() ? nullptr : std::get_if<T>(&it->second);
  }
};

// `name` is for messages.
Result<GgufContents> parse_gguf(std::string_view bytes, const std::string& name);

}  // namespace warpweave
