// Prefetches of objects into the CPU's caches. The engine's thread sleeps while the device computes and then walks over
// every request, whose memory has left the caches by then: prefetched, its cache misses overlap instead of adding up.
#pragma once

#include <cstddef>
#include <iterator>
#include <vector>

namespace warpweave {

inline constexpr size_t kCacheLineBytes = 64;

// The cache lines of `bytes` from `memory` on, to be written. Any address is allowed, null too: nothing faults.
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

// The line behind a vector's last element, which push_back() writes.
template <typename T>
void prefetch_end(const std::vector<T>& values) {
  __builtin_prefetch(values.data() + values.size(), 1);
}

}  // namespace warpweave
