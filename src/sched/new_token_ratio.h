// NewTokenRatio: how much of their max_new_tokens the running requests are assumed to use.
//
// Admission reserves ratio * remaining tokens for each. Most requests stop early, so the ratio
// starts below 1 and decays with every decode step; a retraction proves it too low and raises it
// to what the running requests show. --schedule-conservativeness scales the start.
#pragma once

#include <algorithm>
#include <cstdint>

namespace warpweave {

class NewTokenRatio {
 public:
  explicit NewTokenRatio(double conservativeness)
      : initial_(std::min(kInitial * conservativeness, 1.0)), value_(initial_) {}

  double value() const { return value_; }

  void on_decode_step() {
    value_ = std::max(value_ - initial_ * (1 - kFloor) / kDecaySteps, initial_ * kFloor);
  }

  // `decoded` and `max_new` summed over the requests that stay.
  void on_retraction(int64_t decoded, int64_t max_new) {
    const double observed = max_new > 0 ? static_cast<double>(decoded) / max_new : 1.0;
    value_ = std::min(std::max(value_, observed), 1.0);
  }

  void on_idle() { value_ = initial_; }

 private:
  static constexpr double kInitial = 0.7;
  static constexpr double kFloor = 0.14;  // of the initial value
  static constexpr int kDecaySteps = 600;

  double initial_;
  double value_;
};

}  // namespace warpweave
