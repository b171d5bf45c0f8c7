// Mappings that begin at a huge page, so that the kernel can back them with such from their first byte on.
#pragma once

#include <cstddef>

namespace warpweave {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// `bytes` of zeros of this process alone, or null where the system refuses (errno says why). `flags`: mmap's, beside
// those that say so much. Given back with munmap(begin, bytes).
std::byte* map_at_huge_page(size_t bytes, int flags = 0);

}  // namespace warpweave
