// Capturing a stream's work as a graph, and launching it.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "device/cuda/stream.h"

namespace warpweave {

// Fills that a graph may have and still be launched at once: for each of them in turn the host takes about 2 us, and
// GEMMs of cuBLASLt that split the depth begin with one. A graph that could be launched from the GPU, too, takes the
// host about 2 us more than others, but as good as nothing for fills.
inline constexpr int kMostFillsAtOnce = 4;

inline Result<bool> has_many_fills(cudaGraph_t graph, std::string_view what) {
  size_t count = 0;
  WW_CUDA_RETURN_IF_ERROR(cudaGraphGetNodes(graph, nullptr, &count), what);
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) WW_CUDA_RETURN_IF_ERROR(cudaGraphGetNodes(graph, nodes.data(), &count), what);
  return std::count_if(nodes.begin(), nodes.end(), [](cudaGraphNode_t node) {
           cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
           return cudaGraphNodeGetType(node, &type) == cudaSuccess && type == cudaGraphNodeTypeMemset;
         }) > kMostFillsAtOnce;
}

inline Result<CudaGraphExec> instantiate_graph(cudaGraph_t graph, std::string_view what) {
  CudaGraphExec exec;
  WW_ASSIGN_OR_RETURN(const bool many_fills, has_many_fills(graph, what));
  if (many_fills) {
    if (cudaGraphInstantiate(exec.out(), graph, cudaGraphInstantiateFlagDeviceLaunch) == cudaSuccess) return exec;
    forget_cuda_failure();  // it has nodes that the GPU cannot launch
  }
  WW_CUDA_RETURN_IF_ERROR(cudaGraphInstantiate(exec.out(), graph, 0), what);
  return exec;
}

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
  return instantiate_graph(graph.get(), what);
}

// What its first launch would else do.
inline Status upload_graph(cudaGraphExec_t graph, cudaStream_t stream, std::string_view what) {
  return cuda_status(cudaGraphUpload(graph, stream), what);
}

inline Status launch_graph(cudaGraphExec_t graph, cudaStream_t stream, std::string_view what) {
  return cuda_status(cudaGraphLaunch(graph, stream), what);
}

}  // namespace warpweave
