// A place where a stream waits until the host has put more work on it, so that a measurement of that work does not
// count the host's launches. Only for builds with GPU kernels; one thread at a time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "device/cuda/stream.h"

namespace warpweave {

class StreamGate {
 public:
  // The stream stops here until open(), but never for long: whatever waits for the stream meanwhile gets on. The gate
  // outlives the stream's wait.
  Status close(cudaStream_t stream) {
    open_ = false;
    const auto wait = [](void* gate) { static_cast<StreamGate*>(gate)->wait(); };
    return cuda_status(cudaLaunchHostFunc(stream, wait, this), "a measurement");
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    opened_.wait_for(lock, std::chrono::milliseconds(50), [&] { return open_; });
  }

  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = true;
};

}  // namespace warpweave
