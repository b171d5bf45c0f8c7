// CUDA runtime errors as Status. Only for files of builds with GPU kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "warpweave/status.h"

namespace warpweave {

// Out of memory is `resource_exhausted` (the caller may shrink and try again), all else `internal`. The runtime, which
// remembers the last failure, forgets it: who gets the Status says it, and what runs next is not blamed.
inline Status cuda_status(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  std::string text = std::string(what) + ": CUDA says " + cudaGetErrorString(error);
  cudaGetLastError();
  if (error == cudaErrorMemoryAllocation) return Status::resource_exhausted(std::move(text));
  return Status::internal(std::move(text));
}

// Of the launches before: whether one was refused. What happens while kernels run is told by who waits for them.
inline Status launch_status(std::string_view what) { return cuda_status(cudaPeekAtLastError(), what); }

// A failure of what has ended (its memory was given back, with nobody to tell) is not blamed on what starts now.
inline void forget_cuda_failure() { cudaGetLastError(); }

#define WW_CUDA_RETURN_IF_ERROR(expr, what) \
  WW_RETURN_IF_ERROR(::warpweave::cuda_status((expr), (what)))

}  // namespace warpweave
