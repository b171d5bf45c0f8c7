#include "ops/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "ops/shared_huge_pages.h"

namespace warpweave {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kShared = 1;  // as mapped_bytes_: of SharedHugePages

// A mapping that begins at a huge page, or null.
std::byte* map_huge_pages(size_t bytes) {
  // Map one huge page more than needed, then give back what lies outside the aligned range.
  const size_t mapped = bytes + kHugePageBytes;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(memory);
  const size_t skip =
      (kHugePageBytes - reinterpret_cast<uintptr_t>(begin) % kHugePageBytes) % kHugePageBytes;
  if (skip > 0) munmap(begin, skip);
  if (mapped > skip + bytes) munmap(begin + skip + bytes, mapped - skip - bytes);
  madvise(begin + skip, bytes, MADV_HUGEPAGE);
  return reinterpret_cast<std::byte*>(begin + skip);
}

SharedHugePages& shared_pages() {
  static auto* const pages = new SharedHugePages(map_huge_pages);  // outlives every buffer
  return *pages;
}

}  // namespace

AlignedBuffer AlignedBuffer::allocate(size_t bytes) {
  AlignedBuffer buffer;
  if (bytes == 0 || bytes > SIZE_MAX / 2) return buffer;
  if (bytes >= SharedHugePages::kLeastBytes && bytes <= SharedHugePages::kMostBytes) {
    buffer.data_ = shared_pages().take(bytes);
    if (!buffer.data_) return buffer;
    buffer.size_ = bytes;
    buffer.mapped_bytes_ = kShared;
    return buffer;
  }
  if (bytes < kHugePageBytes) {
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* memory = std::aligned_alloc(kAlignment, rounded);
    if (!memory) return buffer;
    std::memset(memory, 0, rounded);
    buffer.data_ = static_cast<std::byte*>(memory);
    buffer.size_ = bytes;
    return buffer;
  }
  const size_t rounded = (bytes + 4095) / 4096 * 4096;
  buffer.data_ = map_huge_pages(rounded);
  if (!buffer.data_) return buffer;
  buffer.size_ = bytes;
  buffer.mapped_bytes_ = rounded;
  return buffer;
}

AlignedBuffer::~AlignedBuffer() {
  if (mapped_bytes_ == kShared) {
    shared_pages().give_back(data_, size_);
  } else if (mapped_bytes_ > 0) {
    munmap(data_, mapped_bytes_);
  } else {
    std::free(data_);
  }
}

}  // namespace warpweave
