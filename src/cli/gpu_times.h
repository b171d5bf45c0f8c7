// Times of work on the current GPU, by its own clock. Only for builds with GPU kernels.
#pragma once

#include <algorithm>
#include <vector>

#include "device/cuda/stream.h"

namespace warpweave {

// Median microseconds of what `run`, which returns a Status, puts on the stream. It runs at least five times, then
// until max_repeats or max_seconds are reached.
template <typename Run>
Result<double> median_gpu_us(cudaStream_t stream, int max_repeats, double max_seconds, Run&& run) {
  constexpr int kMinRepeats = 5;
  WW_ASSIGN_OR_RETURN(const CudaEvent begin, create_timed_event());
  WW_ASSIGN_OR_RETURN(const CudaEvent end, create_timed_event());
  std::vector<float> times_ms;
  double total_s = 0;
  while (static_cast<int>(times_ms.size()) < kMinRepeats ||
         (static_cast<int>(times_ms.size()) < max_repeats && total_s < max_seconds)) {
    WW_RETURN_IF_ERROR(record_event(begin.get(), stream, "a measurement"));
    WW_RETURN_IF_ERROR(run());
    WW_RETURN_IF_ERROR(record_event(end.get(), stream, "a measurement"));
    WW_RETURN_IF_ERROR(wait_for_event(end.get(), "a measurement"));
    const std::optional<float> took_ms = elapsed_ms(begin, end);
    if (!took_ms) return Status::internal("a measurement: the GPU does not say how long it took");
    times_ms.push_back(*took_ms);
    total_s += *took_ms / 1e3;
  }
  std::nth_element(times_ms.begin(), times_ms.begin() + times_ms.size() / 2, times_ms.end());
  return times_ms[times_ms.size() / 2] * 1e3;
}

}  // namespace warpweave
