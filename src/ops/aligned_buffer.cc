#include "ops/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace warpweave {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kAlignment = 64;

}  // namespace

AlignedBuffer AlignedBuffer::allocate(size_t bytes) {
  AlignedBuffer buffer;
  if (bytes == 0 || bytes > SIZE_MAX / 2) return buffer;
  if (bytes < kHugePageBytes) {
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* memory = std::aligned_alloc(kAlignment, rounded);
    if (!memory) return buffer;
    std::memset(memory, 0, rounded);
    buffer.data_ = static_cast<std::byte*>(memory);
    buffer.size_ = bytes;
    return buffer;
  }
  // Map one huge page more than needed, then give back what lies outside the aligned range.
  const size_t rounded = (bytes + 4095) / 4096 * 4096;
  const size_t mapped = rounded + kHugePageBytes;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return buffer;
  char* const begin = static_cast<char*>(memory);
  const size_t skip =
      (kHugePageBytes - reinterpret_cast<uintptr_t>(begin) % kHugePageBytes) % kHugePageBytes;
  if (skip > 0) munmap(begin, skip);
  if (mapped > skip + rounded) munmap(begin + skip + rounded, mapped - skip - rounded);
  madvise(begin + skip, rounded, MADV_HUGEPAGE);
  buffer.data_ = reinterpret_cast<std::byte*>(begin + skip);
  buffer.size_ = bytes;
  buffer.mapped_bytes_ = rounded;
  return buffer;
}

AlignedBuffer::~AlignedBuffer() {
  if (mapped_bytes_ > 0) {
    munmap(data_, mapped_bytes_);
  } else {
    std::free(data_);
  }
}

}  // namespace warpweave
