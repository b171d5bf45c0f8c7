// How often each expert of each layer was chosen since the start, for /metrics. Written by the device's thread
// after a layer (the CPU) or from counts that a GPU hands over now and then; read by any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "warpweave/engine.h"

namespace warpweave {

class ExpertLoad {
 public:
  ExpertLoad(int layers, int experts) : experts_(experts), counts_(static_cast<size_t>(layers) * experts) {}

  // `rows`: of one layer, how many rows chose each expert.
  void add(int layer, std::span<const int32_t> rows) {
    for (int e = 0; e < experts_; ++e) {
      if (rows[e] > 0) counts_[static_cast<size_t>(layer) * experts_ + e].fetch_add(rows[e], std::memory_order_relaxed);
    }
  }

  void clear() {
    for (std::atomic<uint64_t>& count : counts_) count.store(0, std::memory_order_relaxed);
  }

  // The layers in which some expert was chosen.
  std::vector<ExpertLayerLoad> summary() const {
    std::vector<ExpertLayerLoad> out;
    for (size_t first = 0; first < counts_.size(); first += experts_) {
      ExpertLayerLoad layer{.layer = static_cast<int>(first / experts_), .experts = experts_};
      for (int e = 0; e < experts_; ++e) {
        const uint64_t count = counts_[first + e].load(std::memory_order_relaxed);
        layer.choices += count;
        layer.busiest = std::max(layer.busiest, count);
        layer.never_chosen += count == 0;
      }
      if (layer.choices > 0) out.push_back(layer);
    }
    return out;
  }

 private:
  int experts_;
  std::vector<std::atomic<uint64_t>> counts_;  // [layers, experts]
};

}  // namespace warpweave
