// Times of work on the current GPU, by its own clock. Only for builds with GPU kernels.
#pragma once

#include <algorithm>
#include <vector>

#include "device/cuda/stream.h"

namespace warpweave {

// Median microseconds of what `run`, which returns a Status, puts on the stream. It runs at least five times, then until
// max_repeats or max_seconds are reached.
template <typename Run>
Result<double> median_gpu_us(cudaStream_t stream, int max_repeats, double max_seconds, Run&& run) {
  constexpr int kMinRepeats = 5;
  CudaEvent begin, end;
  WW_CUDA_RETURN_IF_ERROR(cudaEventCreate(begin.out()), "an event");
  WW_CUDA_RETURN_IF_ERROR(cudaEventCreate(end.out()), "an event");
  std::vector<float> times_ms;
  double total_s = 0;
  while (static_cast<int>(times_ms.size()) < kMinRepeats ||
         (static_cast<int>(times_ms.size()) < max_repeats && total_s < max_seconds)) {
    cudaEventRecord(begin.get(), stream);
    WW_RETURN_IF_ERROR(run());
    cudaEventRecord(end.get(), stream);
    WW_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(end.get()), "a measurement");
    float elapsed_ms = 0;
    WW_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&elapsed_ms, begin.get(), end.get()), "a measurement");
    times_ms.push_back(elapsed_ms);
    total_s += elapsed_ms / 1e3;
  }
  std::nth_element(times_ms.begin(), times_ms.begin() + times_ms.size() / 2, times_ms.end());
  return times_ms[times_ms.size() / 2] * 1e3;
}

}  // namespace warpweave
