// Owned, 64-byte aligned memory, move-only. Large buffers (>= 2 MiB) are 2 MiB aligned and advised
// to use huge pages, which keeps TLB misses out of weight streaming. Contents are zero at first.
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
  size_t mapped_bytes_ = 0;  // > 0: from mmap, else from aligned_alloc
};

}  // namespace warpweave
