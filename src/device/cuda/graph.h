// Capturing a stream's work as a graph, and launching it.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "device/cuda/stream.h"

namespace warpweave {

// What `enqueue`, which returns a Status, puts on the stream. The capture ends even where that fails, whose Status is
// then returned. Work that must not happen inside a capture (allocating, loading) is to be done before. `what`: for
// errors.
template <typename Enqueue>
Result<CudaGraphExec> capture_graph(cudaStream_t stream, std::string_view what, Enqueue&& enqueue) {
  WW_CUDA_RETURN_IF_ERROR(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), what);
  const Status status = enqueue();
  CudaGraph graph;
  const cudaError_t ended = cudaStreamEndCapture(stream, graph.out());
  WW_RETURN_IF_ERROR(status);
  WW_CUDA_RETURN_IF_ERROR(ended, what);
  CudaGraphExec exec;
  WW_CUDA_RETURN_IF_ERROR(cudaGraphInstantiate(exec.out(), graph.get(), 0), what);
  return exec;
}

// What its first launch would else do.
inline Status upload_graph(cudaGraphExec_t graph, cudaStream_t stream, std::string_view what) {
  return cuda_status(cudaGraphUpload(graph, stream), what);
}

inline Status launch_graph(cudaGraphExec_t graph, cudaStream_t stream, std::string_view what) {
  return cuda_status(cudaGraphLaunch(graph, stream), what);
}

}  // namespace warpweave
