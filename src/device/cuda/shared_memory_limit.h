// Dynamic shared memory beyond the 48 KiB that every kernel may use. Only for files of builds with GPU kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>

namespace warpweave {

// One a kernel, static beside its launch. Any thread.
class SharedMemoryLimit {
 public:
  // Lets `kernel` use `bytes`. The driver is asked until it has agreed once: a failure is this launch's alone, the next
  // one asks again.
  template <typename Kernel>
  cudaError_t raise(Kernel* kernel, int bytes) {
    if (raised_.load(std::memory_order_acquire)) return cudaSuccess;
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess) raised_.store(true, std::memory_order_release);
    return error;
  }

 private:
  std::atomic<bool> raised_ = false;
};

}  // namespace warpweave
