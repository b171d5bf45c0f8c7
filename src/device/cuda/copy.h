// Copies and fills: in the order of a stream's work, between GPU memory and pinned host memory in any direction; or at
// once, from and to any memory of the host, for what is done before serving: what they return from is done, for work
// of any stream.
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

// CUDA's own call may return before a copy from pageable memory has arrived or a fill has begun, on a stream for which
// the others do not wait.
inline Status wait_for_default_stream(cudaError_t called, std::string_view what) {
  return cuda_status(called == cudaSuccess ? cudaStreamSynchronize(cudaStreamLegacy) : called, what);
}

inline Status copy_now(void* to, const void* from, size_t bytes, std::string_view what) {
  return wait_for_default_stream(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), what);
}

// Rows of row_bytes that stand a pitch apart on either side.
struct RowsToCopy {
  void* to = nullptr;
  size_t to_pitch = 0;
  const void* from = nullptr;
  size_t from_pitch = 0;
  size_t row_bytes = 0;
  size_t rows = 0;
};

inline Status copy_rows_async(const RowsToCopy& copy, void* stream, std::string_view what) {
  return cuda_status(cudaMemcpy2DAsync(copy.to, copy.to_pitch, copy.from, copy.from_pitch, copy.row_bytes, copy.rows,
                                       cudaMemcpyDefault, static_cast<cudaStream_t>(stream)), what);
}

inline Status copy_rows_now(const RowsToCopy& copy, std::string_view what) {
  return wait_for_default_stream(cudaMemcpy2D(copy.to, copy.to_pitch, copy.from, copy.from_pitch, copy.row_bytes,
                                              copy.rows, cudaMemcpyDefault), what);
}

// GPU memory, all bytes alike.
inline Status fill_async(void* to, int byte, size_t bytes, void* stream, std::string_view what) {
  return cuda_status(cudaMemsetAsync(to, byte, bytes, static_cast<cudaStream_t>(stream)), what);
}

inline Status fill_now(void* to, int byte, size_t bytes, std::string_view what) {
  return wait_for_default_stream(cudaMemset(to, byte, bytes), what);
}

}  // namespace warpweave
