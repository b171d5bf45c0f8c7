// Memory on the GPU for one call, given back by the stream behind the call's work. Only for builds with GPU kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "device/cuda/cuda_check.h"

namespace warpweave {

class StreamMemory {
 public:
  explicit StreamMemory(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}
  StreamMemory(const StreamMemory&) = delete;
  ~StreamMemory() {
    if (data_ != nullptr) cudaFreeAsync(data_, stream_);
  }
  // Once. `call`: what needs it, for the error.
  Status allocate(size_t bytes, const char* call) { return cuda_status(cudaMallocAsync(&data_, bytes, stream_), call); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
};

}  // namespace warpweave
