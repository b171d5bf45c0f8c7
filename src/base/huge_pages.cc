#include "base/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace warpweave {
namespace {

constexpr uintptr_t kPageBytes = 4096;

uintptr_t round_up(uintptr_t value, uintptr_t unit) { return (value + unit - 1) / unit * unit; }

void unmap(uintptr_t begin, uintptr_t end) {
  if (end > begin) munmap(reinterpret_cast<void*>(begin), end - begin);
}

}  // namespace

std::byte* map_at_huge_page(size_t bytes, int flags) {
  // One huge page more than needed; what lies outside the aligned range goes back.
  const size_t mapped = bytes + kHugePageBytes;
  void* const memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  const auto first = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = round_up(first, kHugePageBytes);
  unmap(first, begin);
  unmap(round_up(begin + bytes, kPageBytes), round_up(first + mapped, kPageBytes));
  return reinterpret_cast<std::byte*>(begin);
}

}  // namespace warpweave
