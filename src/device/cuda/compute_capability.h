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

}  // namespace warpweave
