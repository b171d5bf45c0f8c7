// Measured times of the two forms that prompts of latent attention can take (model/layers/latent_prefill_plan.h):
// absorbed, where they attend to the cached rows themselves, and expanded, where K and V of every head are made of them
// first. As `warpweave tune` writes them, of steps of 1, 4 and 16 requests alike: a crowd of short prompts fills a GPU
// that one of them leaves idle. Between what was measured, times are interpolated. Values.
#pragma once

#include <optional>
#include <span>
#include <string>
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

// A step of so many requests, each of `new_tokens` behind `prefix` cached ones: microseconds of a layer, that is of its
// mixer in each form and of little else.
struct LatentFormPoint {
  int requests = 1;
  int new_tokens = 0;
  int prefix = 0;
  double absorbed_us = 0;
  double expanded_us = 0;
};

// What was measured of one shape.
struct LatentFormSet {
  LatentFormShape shape;
  std::string date;
  std::vector<LatentFormPoint> points;
};

class LatentFormTimes {
 public:
  struct Pair {
    double absorbed_us = 0;
    double expanded_us = 0;
  };

  LatentFormTimes() = default;
  // A grid: every number of new tokens with every prefix of one request, and of crowds what was measured: those that
  // were not take as much longer as they have more requests than the next smaller crowd. nullopt: a pair of one request
  // is missing, there are no crowds, or more than 16 sizes of them.
  static std::optional<LatentFormTimes> of(std::span<const LatentFormPoint> points);
  // So far on the way from the times of `low` to those of `high`, on the grid of `low`.
  struct Shares {
    double absorbed = 0;
    double expanded = 0;
  };
  static LatentFormTimes between(const LatentFormTimes& low, const LatentFormTimes& high, const Shares& shares);
  LatentFormTimes scaled(double factor) const;

  bool empty() const { return times_.empty(); }
  // A step of so many requests alike; parts of one count, too, from one request on.
  Pair estimate(double requests, int new_tokens, int prefix) const;
  int fewest_new_tokens() const { return new_tokens_.front(); }
  int most_requests() const { return requests_.back(); }

 private:
  Pair of_crowd(size_t crowd, int new_tokens, int prefix) const;

  std::vector<int> requests_, new_tokens_, prefixes_;  // ascending
  std::vector<Pair> times_;                            // [requests][new_tokens][prefixes]
};

}  // namespace warpweave
