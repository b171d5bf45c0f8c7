// Owned, 64-byte aligned memory, move-only, zero at first. Buffers from 32 KiB on stand in huge pages where the system
// gives any (shared_huge_pages.h), which keeps TLB misses out of weight streaming.
#pragma once

#include <cstddef>
#include <utility>

namespace warpweave {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    return *this;
  }

  // `bytes` of zeros, or an empty buffer when the system refuses (data() == nullptr).
  static AlignedBuffer allocate(size_t bytes);

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t mapped_bytes_ = 0;  // > 1: from mmap; 1: shared huge pages; 0: from aligned_alloc
};

}  // namespace warpweave
