// Streams, events and executable graphs of the current GPU, owned. Move-only; one thread at a time.
// Only for builds with GPU kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <string_view>
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

// An event that knows when it was reached: for elapsed_ms().
inline Result<CudaEvent> create_timed_event() {
  CudaEvent event;
  WW_CUDA_RETURN_IF_ERROR(cudaEventCreate(event.out()), "an event");
  return event;
}

// Until the work so far is done, which may fail then. `stream` is a cudaStream_t; `what`: for errors.
inline Status wait_for_stream(void* stream, std::string_view what) {
  return cuda_status(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), what);
}
inline Status wait_for_device(std::string_view what) { return cuda_status(cudaDeviceSynchronize(), what); }
inline Status wait_for_event(cudaEvent_t event, std::string_view what) {
  return cuda_status(cudaEventSynchronize(event), what);
}

inline Status record_event(cudaEvent_t event, void* stream, std::string_view what) {
  return cuda_status(cudaEventRecord(event, static_cast<cudaStream_t>(stream)), what);
}
// What the stream does from here on begins when `event` has been reached; the host goes on.
inline Status let_stream_wait(void* stream, cudaEvent_t event, std::string_view what) {
  return cuda_status(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0), what);
}

// The capture that the stream is in, by its number; 0: none.
inline Result<uint64_t> capture_of(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  WW_CUDA_RETURN_IF_ERROR(cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream), &status, &id), "stream");
  return status == cudaStreamCaptureStatusActive ? uint64_t{id} : uint64_t{0};
}
// Whether it is in one, as far as that can be said.
inline bool may_be_capturing(void* stream) {
  cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &captured) == cudaSuccess) {
    return captured != cudaStreamCaptureStatusNone;
  }
  cudaGetLastError();
  return true;
}
// For an event that was recorded outside of the capture that this thread is in, where waiting is else forbidden.
inline Status wait_in_capture(cudaEvent_t event, std::string_view what) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  const cudaError_t waited = cudaEventSynchronize(event);
  cudaThreadExchangeStreamCaptureMode(&mode);
  return cuda_status(waited, what);
}

// Between two timed events that were recorded and waited for; none if that cannot be said, which concerns no other
// call.
inline std::optional<float> elapsed_ms(const CudaEvent& begin, const CudaEvent& end) {
  float ms = 0;
  if (cudaEventElapsedTime(&ms, begin.get(), end.get()) == cudaSuccess) return ms;
  cudaGetLastError();
  return std::nullopt;
}

}  // namespace warpweave
