// Measured times of the two forms that prompts of latent attention can take (model/layers/latent_prefill_plan.h):
// absorbed, where they attend to the cached rows themselves, and expanded, where K and V of every head are made of them
// first. As `warpweave tune` writes them; between what was measured, times are interpolated. Values.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kv/kv_format.h"

namespace warpweave {

struct LatentFormShape {
  int num_heads = 0;
  int kv_rank = 0;
  int nope_dim = 0;
  int rope_dim = 0;
  int v_dim = 0;
  KvFormat kv_format = KvFormat::bf16;
  bool operator==(const LatentFormShape&) const = default;
};

// One request of `new_tokens` behind `prefix` cached ones: microseconds of a layer, that is of its mixer in each form
// and of little else.
struct LatentFormPoint {
  LatentFormShape shape;
  int new_tokens = 0;
  int prefix = 0;
  double absorbed_us = 0;
  double expanded_us = 0;
};

class LatentFormTimes {
 public:
  struct Pair {
    double absorbed_us = 0;
    double expanded_us = 0;
  };

  LatentFormTimes() = default;
  // Of one shape, a grid: every number of new tokens with every prefix. nullopt: one of these pairs is missing, or all.
  static std::optional<LatentFormTimes> of(std::span<const LatentFormPoint> points);

  bool empty() const { return times_.empty(); }
  // By logarithms, bilinear; beyond the grid's ends times grow as the pairs of tokens do that meet.
  Pair estimate(int new_tokens, int prefix) const;

 private:
  std::vector<int> new_tokens_, prefixes_;  // ascending
  std::vector<Pair> times_;                 // [new_tokens][prefixes]
};

}  // namespace warpweave
