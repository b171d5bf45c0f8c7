// Times of work on the current GPU, by its own clock. Only for builds with GPU kernels.
#pragma once

#include <algorithm>
#include <vector>

#include "device/cuda/stream.h"
#include "device/cuda/stream_gate.h"

namespace warpweave {

struct GpuTimesOptions {
  int min_repeats = 5, max_repeats = 40;
  double max_seconds = 0.3;  // once there are min_repeats
  bool queued = false;       // work begins when all of it is on the stream: the host's time to launch it is not counted
};

// Median microseconds of what `run`, which returns a Status, puts on the stream.
template <typename Run>
Result<double> median_gpu_us(cudaStream_t stream, const GpuTimesOptions& options, Run&& run) {
  StreamGate gate;
  WW_ASSIGN_OR_RETURN(const CudaEvent begin, create_timed_event());
  WW_ASSIGN_OR_RETURN(const CudaEvent end, create_timed_event());
  std::vector<float> times_ms;
  double total_s = 0;
  while (static_cast<int>(times_ms.size()) < options.min_repeats ||
         (static_cast<int>(times_ms.size()) < options.max_repeats && total_s < options.max_seconds)) {
    if (options.queued) WW_RETURN_IF_ERROR(gate.close(stream));
    Status put = record_event(begin.get(), stream, "a measurement");
    if (put.ok()) put = run();
    if (put.ok()) put = record_event(end.get(), stream, "a measurement");
    gate.open();
    if (!put.ok()) {
      (void)wait_for_stream(stream, "a measurement");  // which may still be in the gate
      return put;
    }
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
