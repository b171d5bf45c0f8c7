// Tokens per second over the last ten seconds: what a gauge shows while tokens come, falling to 0 when they end.
//
// Tokens are counted by whole seconds, so the cost is that of eleven counters and a reading may be up to one second
// old. Not thread-safe. Never allocates.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace warpweave {

class TokenRate {
 public:
  static constexpr int64_t kWindowSeconds = 10;

  // `seconds` since any fixed moment; never before that of an earlier call.
  void add(double seconds, uint64_t tokens) {
    if (tokens == 0) return;
    if (tokens_since(seconds) == 0) busy_since_ = seconds;
    const int64_t second = static_cast<int64_t>(seconds);
    Count& count = counts_[static_cast<size_t>(second) % counts_.size()];
    if (count.second != second) count = {second, 0};
    count.tokens += tokens;
  }

  // Over the time since tokens began to come, where that is less than the window; at least one second.
  double per_second(double seconds) const {
    const double elapsed = std::clamp(seconds - busy_since_, 1.0, static_cast<double>(kWindowSeconds));
    return static_cast<double>(tokens_since(seconds)) / elapsed;
  }

 private:
  struct Count {
    int64_t second = -kWindowSeconds - 1;
    uint64_t tokens = 0;
  };

  // Tokens of the window that ends at `seconds`.
  uint64_t tokens_since(double seconds) const {
    const int64_t oldest = static_cast<int64_t>(seconds) - kWindowSeconds;
    uint64_t tokens = 0;
    for (const Count& count : counts_) tokens += count.second > oldest ? count.tokens : 0;
    return tokens;
  }

  std::array<Count, static_cast<size_t>(kWindowSeconds) + 1> counts_;
  double busy_since_ = 0;
};

}  // namespace warpweave
