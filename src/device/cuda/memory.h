// Owned GPU and pinned host memory. Move-only values; freed on destruction. Not synchronised.
//
// Errors: `resource_exhausted` with the size and what it was for. Only for builds with GPU kernels.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "warpweave/status.h"

namespace warpweave {

enum class MemoryKind { device, pinned };

template <MemoryKind kKind>
class OwnedBuffer {
 public:
  OwnedBuffer() = default;
  static Result<OwnedBuffer> allocate(size_t size_bytes, std::string_view what);
  OwnedBuffer(OwnedBuffer&& other) noexcept { *this = std::move(other); }
  OwnedBuffer& operator=(OwnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
  }
  ~OwnedBuffer();

  template <typename T = std::byte>
  T* as() const { return static_cast<T*>(data_); }
  size_t size_bytes() const { return size_bytes_; }

 private:
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// Memory of the current GPU, 256-byte aligned.
using DeviceBuffer = OwnedBuffer<MemoryKind::device>;
// Page-locked host memory: copies to and from it run beside the GPU's kernels.
using PinnedBuffer = OwnedBuffer<MemoryKind::pinned>;

// Memory that the host has already, page-locked from here on; false: it could not be, which concerns no other call.
bool pin_memory(void* data, size_t size_bytes);
void unpin_memory(void* data);

// Many small allocations that live and die together, cut from slabs. 256-byte aligned.
class DeviceArena {
 public:
  explicit DeviceArena(size_t slab_bytes) : slab_bytes_(slab_bytes) {}
  Result<void*> allocate(size_t size_bytes, std::string_view what);
  size_t used_bytes() const { return used_bytes_; }

 private:
  size_t slab_bytes_;
  size_t used_bytes_ = 0;
  size_t slab_used_ = 0;
  std::vector<DeviceBuffer> slabs_;
};

}  // namespace warpweave
