// What the GPU benchmarks share. An error is printed and ends the program: check(), take().
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "device/cuda/stream.h"
#include "warpweave/status.h"

namespace warpweave::bench {

inline void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  fmt::print(stderr, "CUDA: {}\n", cudaGetErrorString(error));
  std::exit(1);
}

inline void check(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "{}\n", status.message());
  std::exit(1);
}

template <typename T>
T take(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

// Microseconds of one of the `launches` that `enqueue` makes on `stream`: the median of kReplays replays of a graph of
// them, after they have run once.
template <typename Enqueue>
double time_us(cudaStream_t stream, int launches, const Enqueue& enqueue) {
  constexpr int kReplays = 9;
  enqueue();
  check(cudaStreamSynchronize(stream));
  CudaGraph graph;
  CudaGraphExec exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  enqueue();
  check(cudaStreamEndCapture(stream, graph.out()));
  check(cudaGraphInstantiate(exec.out(), graph.get(), 0));
  CudaEvent begin, end;
  check(cudaEventCreate(begin.out()));
  check(cudaEventCreate(end.out()));
  std::vector<float> times;
  for (int i = 0; i < kReplays; ++i) {
    check(cudaEventRecord(begin.get(), stream));
    check(cudaGraphLaunch(exec.get(), stream));
    check(cudaEventRecord(end.get(), stream));
    check(cudaEventSynchronize(end.get()));
    check(cudaEventElapsedTime(&times.emplace_back(), begin.get(), end.get()));
  }
  std::sort(times.begin(), times.end());
  return times[kReplays / 2] * 1e3 / launches;
}

}  // namespace warpweave::bench
