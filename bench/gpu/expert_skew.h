// Routings that crowd into few experts, for benchmarks: dice of the host draw them, and the router gets what makes it
// choose so.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu/cuda_bench.h"
#include "ops/cuda/testing/expert_memory.h"

namespace warpweave::gpu {

enum class Skew : uint8_t {
  even,     // every row its own k by dice
  same,     // every row the same k
  half,     // every second row the same k, the others by dice
  quarter,  // by dice among a quarter of the experts
};
inline constexpr std::array kUnevenSkews = {Skew::same, Skew::half, Skew::quarter};

inline const char* skew_name(Skew skew) {
  constexpr const char* kNames[] = {"even", "same", "half", "quarter"};
  return kNames[static_cast<int>(skew)];
}

// Whether a quarter of the experts is more than every row chooses anyway.
inline bool quarter_is_apart(const ExpertShape& shape) { return shape.experts / 4 > shape.k; }

class SkewDice {
 public:
  SkewDice(const ExpertShape& shape, unsigned seed) : k_(shape.k), order_(shape.experts), random_(seed) {
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), random_);
  }

  // [rows, k], in a row all different. Turns that follow each other crowd into other experts, so that caches have none
  // of them.
  std::vector<int> draw(Skew skew, int64_t rows, int turn) {
    std::vector<int> all = order_;
    std::vector<int> crowded = crowd(skew == Skew::quarter ? std::max(k_, experts() / 4) : k_, turn);
    std::vector<int> out(rows * k_);
    for (int64_t row = 0; row < rows; ++row) {
      const bool by_dice = skew == Skew::even || (skew == Skew::half && row % 2 == 1);
      draw_row(by_dice ? all : crowded, &out[row * k_]);
    }
    return out;
  }

  // Logits of which the chosen experts' are the largest.
  std::vector<float> logits_choosing(const std::vector<int>& chosen) {
    const auto rows = static_cast<int64_t>(chosen.size()) / k_;
    std::vector<float> out(rows * experts());
    for (float& x : out) x = static_cast<float>(random_()) * 0x1p-32f;
    for (size_t pair = 0; pair < chosen.size(); ++pair) out[pair / k_ * experts() + chosen[pair]] += 1;
    return out;
  }

 private:
  int experts() const { return static_cast<int>(order_.size()); }
  std::vector<int> crowd(int count, int turn) const {
    std::vector<int> out(count);
    for (int i = 0; i < count; ++i) out[i] = order_[(turn * count + i) % experts()];
    return out;
  }
  void draw_row(std::vector<int>& from, int* to) {
    for (int j = 0; j < k_; ++j) {
      std::swap(from[j], from[j + random_() % (from.size() - j)]);
      to[j] = from[j];
    }
  }

  int k_;
  std::vector<int> order_;
  std::mt19937 random_;
};

// Rows of x, each the sum of the chosen experts' rows of the router, which are random: so no other row is as near.
inline std::vector<float> x_choosing(const std::vector<int>& chosen, const ExpertShape& shape,
                                     const bench::Matrix& router) {
  const auto rows = static_cast<int64_t>(chosen.size()) / shape.k;
  std::vector<float> out(rows * shape.hidden);
  for (size_t pair = 0; pair < chosen.size(); ++pair) {
    float* const row = &out[static_cast<int64_t>(pair) / shape.k * shape.hidden];
    const int64_t of_router = chosen[pair] * shape.hidden;
    for (int64_t i = 0; i < shape.hidden; ++i) row[i] += static_cast<float>(router.at(of_router + i));
  }
  return out;
}

inline int experts_of(const std::vector<int>& chosen) {
  return static_cast<int>(std::set<int>(chosen.begin(), chosen.end()).size());
}

// Ends the program where the GPU chose others than the dice: the floors would be those of another routing.
inline void must_choose(std::vector<int> wanted, std::vector<int32_t> chosen, int k) {
  for (size_t row = 0; row < wanted.size(); row += k) {
    std::sort(wanted.begin() + row, wanted.begin() + row + k);
    std::sort(chosen.begin() + row, chosen.begin() + row + k);
  }
  if (wanted == chosen) return;
  fmt::print(stderr, "experts_bench: the GPU chose other experts than the dice did\n");
  std::exit(1);
}

// Over the floor of the experts that were chosen.
struct SkewedTime {
  std::string shape;
  double ratio = 0;
  double planned = 0;  // with tiles planned for as many experts as were chosen
  int experts = 0;     // that were chosen, at most
};

// Geometric mean and worst of one routing's times over the floor, divided by even routing's.
class SkewMeans {
 public:
  void add(const SkewedTime& skewed, const SkewedTime& even) {
    const double ratio = skewed.ratio / even.ratio;
    logs_ += std::log(ratio);
    planned_logs_ += std::log(skewed.planned / even.ratio);
    ++count_;
    if (ratio <= worst_) return;
    worst_ = ratio;
    worst_shape_ = skewed.shape;
  }
  void add(const SkewMeans& other) {
    logs_ += other.logs_;
    planned_logs_ += other.planned_logs_;
    count_ += other.count_;
    if (other.worst_ > worst_) worst_ = other.worst_, worst_shape_ = other.worst_shape_;
  }
  void print(const char* name) const {
    if (count_ == 0) return;
    fmt::print(
        "{}: {:.3f} x even's time / floor, with tiles for the chosen experts {:.3f} x, worst {:.2f} x ({}), "
        "{} layers\n",
        name, std::exp(logs_ / count_), std::exp(planned_logs_ / count_), worst_, worst_shape_, count_);
  }

 private:
  double logs_ = 0, planned_logs_ = 0, worst_ = 0;
  int count_ = 0;
  std::string worst_shape_;
};

}  // namespace warpweave::gpu
