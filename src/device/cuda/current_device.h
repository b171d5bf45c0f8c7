// The GPU that this thread's calls go to. Only for files of builds with GPU kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string_view>

#include "device/cuda/cuda_check.h"

namespace warpweave {

inline Result<int> current_device(std::string_view what) {
  int device = 0;
  WW_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device), what);
  return device;
}

// Of threads that others have made: a failure shows in the first call behind it.
inline void use_device(int device) { cudaSetDevice(device); }

// Of the current device. `what`: for errors.
inline Result<int> device_attribute(cudaDeviceAttr attribute, std::string_view what) {
  WW_ASSIGN_OR_RETURN(const int device, current_device(what));
  int value = 0;
  WW_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&value, attribute, device), what);
  return value;
}

inline Result<int> multiprocessors(std::string_view what) {
  return device_attribute(cudaDevAttrMultiProcessorCount, what);
}

struct GpuMemoryBytes {
  size_t free = 0;
  size_t total = 0;
};

inline Result<GpuMemoryBytes> gpu_memory_bytes() {
  GpuMemoryBytes out;
  WW_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&out.free, &out.total), "reading the GPU's memory");
  return out;
}

}  // namespace warpweave
