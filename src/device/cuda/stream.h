// Streams, events and executable graphs of the current GPU, owned. Move-only; one thread at a time.
// Only for builds with GPU kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <utility>

#include "device/cuda/cuda_check.h"

namespace warpweave {

// A CUDA handle with the function that destroys it.
template <typename Handle, cudaError_t (*Destroy)(Handle)>
class CudaHandle {
 public:
  CudaHandle() = default;
  CudaHandle(CudaHandle&& other) noexcept { std::swap(handle_, other.handle_); }
  CudaHandle& operator=(CudaHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~CudaHandle() {
    if (handle_ != nullptr) Destroy(handle_);
  }
  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  Handle handle_ = nullptr;
};

using CudaStream = CudaHandle<cudaStream_t, cudaStreamDestroy>;
using CudaEvent = CudaHandle<cudaEvent_t, cudaEventDestroy>;
using CudaGraph = CudaHandle<cudaGraph_t, cudaGraphDestroy>;
using CudaGraphExec = CudaHandle<cudaGraphExec_t, cudaGraphExecDestroy>;

inline Result<CudaStream> create_stream() {
  CudaStream stream;
  WW_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(stream.out(), cudaStreamNonBlocking), "a stream");
  return stream;
}

inline Result<CudaEvent> create_event() {
  CudaEvent event;
  WW_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(event.out(), cudaEventDisableTiming), "an event");
  return event;
}

// Between two timed events that were recorded and waited for; none if that cannot be said, which concerns no other call.
inline std::optional<float> elapsed_ms(const CudaEvent& begin, const CudaEvent& end) {
  float ms = 0;
  if (cudaEventElapsedTime(&ms, begin.get(), end.get()) == cudaSuccess) return ms;
  cudaGetLastError();
  return std::nullopt;
}

}  // namespace warpweave
