// The GPU as facts, for programs built with and without GPU kernels, on machines with and without one.
//
// No CUDA type appears here. Thread-safe. Errors: `unsupported`, in words a user can act on, when
// the program has no GPU kernels, the driver is missing or too old, there is no GPU, or the GPU's
// architecture has no kernels in this program.
#pragma once

#include <cstddef>
#include <string>

#include "warpweave/status.h"

namespace warpweave {

struct CudaDeviceInfo {
  std::string name;            // "NVIDIA H200"
  int ordinal = 0;
  int compute_capability = 0;  // 90 for 9.0
  int driver_version = 0;      // CUDA version the driver speaks: 13000 for 13.0
  int num_sms = 0;
  size_t total_bytes = 0;
  size_t free_bytes = 0;
};

// Was this program built with GPU kernels?
bool built_with_cuda();

// The first GPU, ready to serve, or why there is none.
Result<CudaDeviceInfo> probe_cuda_device();

}  // namespace warpweave
