// What /start_profile records: when each step was prepared and computed, and what was in it, as a trace that
// ui.perfetto.dev and chrome://tracing show. Thread-safe; record() costs an atomic load and an increment while nothing
// is recorded. Format: Trace Event Format (Google, 2016).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "batch/forward_batch.h"
#include "warpweave/engine.h"
#include "warpweave/status.h"

namespace warpweave {

std::string_view mode_name(ForwardMode mode);  // "decode"

class StepTrace {
 public:
  static constexpr int kMaxSteps = 200'000;

  struct Step {
    std::chrono::steady_clock::time_point launched;  // its preparation ended then
    std::chrono::steady_clock::time_point finished;
    double host_us = 0;
    double device_us = 0;
    std::string_view mode;  // of static storage
    int requests = 0;
    int tokens = 0;
  };

  // invalid_argument while a recording runs.
  Status start(const ProfileRequest& request);
  void record(const Step& step);
  // Writes the file and returns its path, also that of a recording that ended by itself; invalid_argument when nothing
  // is recorded, internal when the file could not be written.
  Result<std::string> stop();

 private:
  Result<std::string> write();

  std::atomic<bool> active_{false};
  std::atomic<int64_t> steps_seen_{0};  // recorded or not
  std::mutex mutex_;  // guards what follows
  ProfileRequest request_;
  std::chrono::steady_clock::time_point begun_;
  std::vector<Step> steps_;
  std::optional<Result<std::string>> written_;  // by record(), when as many steps as asked for were there
};

}  // namespace warpweave
