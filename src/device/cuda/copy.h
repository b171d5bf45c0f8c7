// Copies in the order of a stream's work, between GPU memory and pinned host memory in any direction.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string_view>

#include "device/cuda/cuda_check.h"

namespace warpweave {

// `stream` is a cudaStream_t. Both sides stay as they are until the stream has done it. `what`: for errors.
inline Status copy_async(void* to, const void* from, size_t bytes, void* stream, std::string_view what) {
  return cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)), what);
}

}  // namespace warpweave
