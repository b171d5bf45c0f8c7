// Objects on their way to the cache before they are read. The engine's thread sleeps while the device computes and
// then walks over every request: what it finds cold comes one miss after the other, or together if it was asked for.
#pragma once

#include <cstddef>
#include <iterator>
#include <vector>

namespace warpweave {

inline constexpr size_t kCacheLineBytes = 64;

// `bytes` from `memory` on; null is allowed, as is what is no longer there.
inline void prefetch_bytes(const void* memory, size_t bytes) {
  const char* const begin = static_cast<const char*>(memory);
  for (size_t at = 0; at < bytes; at += kCacheLineBytes) __builtin_prefetch(begin + at, 1);
  if (bytes > 0) __builtin_prefetch(begin + bytes - 1, 1);
}

template <typename T>
void prefetch(const T* object) {
  prefetch_bytes(object, sizeof(T));
}

template <typename Values>
void prefetch_all(const Values& values) {
  prefetch_bytes(std::data(values), std::size(values) * sizeof(*std::data(values)));
}

// Where a vector ends, and grows.
template <typename T>
void prefetch_end(const std::vector<T>& values) {
  __builtin_prefetch(values.data() + values.size(), 1);
}

}  // namespace warpweave
