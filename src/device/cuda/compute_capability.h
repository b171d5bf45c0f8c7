// What the current GPU is, for kernels that are chosen by it. Only for files of builds with GPU kernels.
#pragma once

#include <cuda_runtime_api.h>

namespace warpweave {

// 90 for 9.0; 0 where the runtime knows no device.
inline int current_compute_capability() {
  int device = 0, major = 0, minor = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess;
  return known ? 10 * major + minor : 0;
}

// Sets `count` where it succeeds.
inline cudaError_t read_multiprocessor_count(int& count) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
}

}  // namespace warpweave
