#include "ops/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/huge_pages.h"
#include "ops/shared_huge_pages.h"

namespace warpweave {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kShared = 1;  // as mapped_bytes_: of SharedHugePages

// Or null.
std::byte* map_huge_pages(size_t bytes) {
  std::byte* const begin = map_at_huge_page(bytes);
  if (begin != nullptr) madvise(begin, bytes, MADV_HUGEPAGE);
  return begin;
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
