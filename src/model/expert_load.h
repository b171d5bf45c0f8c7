// How often each expert of each layer was chosen since the start, for /metrics. On CPUs the device's thread writes it
// after a layer and any thread reads; a GPU counts in its own memory (model/gpu_expert_load.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "warpweave/engine.h"

namespace warpweave {

// The layers in which some expert was chosen. count(layer, expert): rows that chose it.
template <typename Count>
std::vector<ExpertLayerLoad> summarize_expert_load(int layers, int experts, const Count& count) {
  std::vector<ExpertLayerLoad> out;
  for (int i = 0; i < layers; ++i) {
    ExpertLayerLoad layer{.layer = i, .experts = experts};
    for (int e = 0; e < experts; ++e) {
      const uint64_t rows = count(i, e);
      layer.choices += rows;
      layer.busiest = std::max(layer.busiest, rows);
      layer.never_chosen += rows == 0;
    }
    if (layer.choices > 0) out.push_back(layer);
  }
  return out;
}

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

  std::vector<ExpertLayerLoad> summary() const {
    return summarize_expert_load(static_cast<int>(counts_.size()) / experts_, experts_, [&](int layer, int e) {
      return counts_[static_cast<size_t>(layer) * experts_ + e].load(std::memory_order_relaxed);
    });
  }

 private:
  int experts_;
  std::vector<std::atomic<uint64_t>> counts_;  // [layers, experts]
};

}  // namespace warpweave
