// Length of the common prefix of two token sequences, at the speed of memcmp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

namespace warpweave {

inline int common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  constexpr int kBlockTokens = 64;
  const int size = static_cast<int>(std::min(a.size(), b.size()));
  int i = 0;
  while (i + kBlockTokens <= size &&
         std::memcmp(a.data() + i, b.data() + i, kBlockTokens * sizeof(int32_t)) == 0) {
    i += kBlockTokens;
  }
  while (i < size && a[i] == b[i]) ++i;
  return i;
}

}  // namespace warpweave
