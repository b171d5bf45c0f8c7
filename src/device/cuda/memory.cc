#include "device/cuda/memory.h"

#include <algorithm>
#include <string>

#include "device/cuda/cuda_check.h"

namespace warpweave {
namespace {

constexpr size_t kAlignBytes = 256;

std::string wanted(size_t size_bytes, std::string_view what) {
  return std::to_string(size_bytes >> 20) + " MiB for " + std::string(what);
}

}  // namespace

template <MemoryKind kKind>
Result<OwnedBuffer<kKind>> OwnedBuffer<kKind>::allocate(size_t size_bytes, std::string_view what) {
  OwnedBuffer out;
  const size_t bytes = std::max<size_t>(size_bytes, 1);
  if constexpr (kKind == MemoryKind::device) {
    WW_CUDA_RETURN_IF_ERROR(cudaMalloc(&out.data_, bytes), "GPU memory, " + wanted(size_bytes, what));
  } else {
    WW_CUDA_RETURN_IF_ERROR(cudaMallocHost(&out.data_, bytes),
                            "pinned memory, " + wanted(size_bytes, what));
  }
  out.size_bytes_ = size_bytes;
  return out;
}

template <MemoryKind kKind>
OwnedBuffer<kKind>::~OwnedBuffer() {
  if (data_ != nullptr) kKind == MemoryKind::device ? cudaFree(data_) : cudaFreeHost(data_);
}

template class OwnedBuffer<MemoryKind::device>;
template class OwnedBuffer<MemoryKind::pinned>;

bool pin_memory(void* data, size_t size_bytes) {
  if (cudaHostRegister(data, size_bytes, cudaHostRegisterDefault) == cudaSuccess) return true;
  cudaGetLastError();
  return false;
}

void unpin_memory(void* data) { cudaHostUnregister(data); }

Result<void*> DeviceArena::allocate(size_t size_bytes, std::string_view what) {
  const size_t rounded = (size_bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
  used_bytes_ += rounded;
  if (rounded >= slab_bytes_ / 4) {  // on its own, before the slab in use
    WW_ASSIGN_OR_RETURN(DeviceBuffer own, DeviceBuffer::allocate(rounded, what));
    void* data = own.as<void>();
    slabs_.insert(slabs_.begin(), std::move(own));
    return data;
  }
  if (slabs_.empty() || slab_used_ + rounded > slabs_.back().size_bytes() || slab_used_ == 0) {
    WW_ASSIGN_OR_RETURN(DeviceBuffer slab, DeviceBuffer::allocate(slab_bytes_, what));
    slabs_.push_back(std::move(slab));
    slab_used_ = 0;
  }
  void* data = slabs_.back().as<std::byte>() + slab_used_;
  slab_used_ += rounded;
  return data;
}

}  // namespace warpweave
