// A warp chooses the experts of one row (ops/router_rule.h). Lane l holds experts l, l + 32, ...
#pragma once

#include <cstdint>

#include "device/cuda/ptx.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {

// Numbers in the order of the floats, both zeros alike; NaN is the least of them, and 0 is no float's.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  if (isnan(x)) return 1;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float of_order(uint32_t order) {
  return __uint_as_float(order & 0x80000000u ? order ^ 0x80000000u : ~order);
}

template <int kEach>
class RowChoice {
 public:
  // Lane j < k gets the j-th choice and its weight.
  __device__ RowChoice(const RouterRule& rule, const float* logits, const float* correction)
      : rule_(rule), lane_(threadIdx.x % 32) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) score_[i] = exists(i) ? __ldcg(logits + i * 32 + lane_) : -INFINITY;
    rule_.score == RouterScore::sparse_mixer ? mix() : choose(correction);
  }
  int chosen = 0;
  float weight = 0;

 private:
  __device__ bool exists(int i) const { return i * 32 + lane_ < rule_.num_experts; }

  __device__ void choose(const float* correction) {
    float total = 1;
    if (rule_.score == RouterScore::softmax && correction == nullptr && rule_.groups == 1) {
      order_scores();
      total = soften();
    } else {
      if (rule_.score == RouterScore::softmax) {
        total = soften();
      } else {
#pragma unroll
        for (int i = 0; i < kEach; ++i) score_[i] = __fdividef(1.0f, 1 + __expf(-score_[i]));
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float corrected = correction != nullptr && exists(i) ? correction[i * 32 + lane_] : 0.0f;
        left_[i] = exists(i) ? ordered(__fdividef(score_[i], total) + corrected) : 0;
      }
      if (rule_.groups > 1) drop_groups();
    }
    find_own();
#pragma unroll 1  // code that is fetched once
    for (int j = 0; j < rule_.k; ++j) {
      const int best = find_best().expert;
      if (lane_ == j) chosen = best;
      drop(best);
    }
    const float of_chosen = score_of_chosen() * __fdividef(1.0f, total);
    const float sum = warp_sum(lane_ < rule_.k ? of_chosen : 0.0f);
    weight = of_chosen * (rule_.renormalise ? __fdividef(rule_.scale, sum + rule_.sum_epsilon) : rule_.scale);
  }

  __device__ void mix() {
    order_scores();
    find_own();
#pragma unroll 1  // code that is fetched once
    for (int j = 0; j < rule_.k; ++j) {
      const Best best = find_best();
      const float top = of_order(best.order);
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const bool near = !(__fdividef(top - score_[i], fmaxf(fabsf(score_[i]), top)) > 2 * rule_.jitter);
        if (left_[i] != 0 && near) sum += __expf(score_[i] - top);
      }
      sum = warp_sum(sum);
      drop(best.expert);
      if (lane_ == j) chosen = best.expert, weight = __fdividef(rule_.scale, sum);
    }
  }

  __device__ void order_scores() {
#pragma unroll
    for (int i = 0; i < kEach; ++i) left_[i] = exists(i) ? ordered(score_[i]) : 0;
  }

  // Scores become exponentials; returns their sum.
  __device__ float soften() {
    float top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) top = fmaxf(top, score_[i]);
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      score_[i] = exists(i) ? __expf(score_[i] - top) : 0;
      sum += score_[i];
    }
    return warp_sum(sum);
  }

  struct Best {
    int expert;
    uint32_t order;
  };
  // The best that this lane has left, ties to the lower index: a tree, in which no comparison waits for all others.
  __device__ void find_own() {
    uint32_t order[kEach];
    int expert[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) order[i] = left_[i], expert[i] = i * 32 + lane_;
#pragma unroll
    for (int step = 1; step < kEach; step *= 2) {
#pragma unroll
      for (int i = 0; i < kEach; i += 2 * step) {
        if (order[i + step] > order[i]) order[i] = order[i + step], expert[i] = expert[i + step];
      }
    }
    own_ = {expert[0], order[0]};
  }

  // The best of those left, in all lanes.
  __device__ Best find_best() const {
    const uint32_t most = __reduce_max_sync(~0u, own_.order);
    const uint32_t expert = own_.order == most ? own_.expert : ~0u;
    return {static_cast<int>(__reduce_min_sync(~0u, expert)), most};
  }

  // An expert is left no more.
  __device__ void drop(int expert) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i * 32 + lane_ == expert) left_[i] = 0;
    }
    find_own();
  }

  // Of every lane's chosen expert: each of a lane's scores goes round once, whoever wants it.
  __device__ float score_of_chosen() const {
    float score = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float of_lane = __shfl_sync(~0u, score_[i], chosen % 32);
      if (chosen / 32 == i) score = of_lane;
    }
    return score;
  }

  // The best of those left for which among(i) counts the lane's i-th, ties to the lower index. Maxima first and then who has it: both
  // without a chain of comparisons through all of a lane's experts.
  template <typename Among>
  __device__ Best find_best(const Among& among) const {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) most = among(i) ? max(most, left_[i]) : most;
    most = __reduce_max_sync(~0u, most);
    uint32_t first = 1 << 30;
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i) {
      if (among(i) && left_[i] == most) first = i * 32 + lane_;
    }
    return {static_cast<int>(__reduce_min_sync(~0u, first)), most};
  }

  __device__ void drop_groups() {
    const int size = rule_.num_experts / rule_.groups;
    float of_group = -INFINITY;  // lane g's
#pragma unroll 1
    for (int g = 0; g < rule_.groups; ++g) {
      const auto of = [&](int i) { return (i * 32 + lane_) / size == g; };
      const Best best = find_best(of);
      float score = of_order(best.order);
      if (rule_.group_score == GroupScore::best_two && size > 1) {
        const auto but_the_best = [&](int i) { return of(i) && i * 32 + lane_ != best.expert; };
        score += of_order(find_best(but_the_best).order);
      }
      if (lane_ == g) of_group = score;
    }
    int better = 0;
#pragma unroll 1
    for (int g = 0; g < rule_.groups; ++g) {
      const uint32_t other = ordered(__shfl_sync(~0u, of_group, g)), own = ordered(of_group);
      better += other > own || (other == own && g < lane_);
    }
    const uint32_t kept = __ballot_sync(~0u, lane_ < rule_.groups && better < rule_.kept_groups);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (exists(i) && (kept >> (i * 32 + lane_) / size & 1) == 0) left_[i] = 0;
    }
  }

  const RouterRule& rule_;
  const int lane_;
  float score_[kEach];
  uint32_t left_[kEach];  // the order of what is chosen by; 0: no expert, or left no more
  Best own_ = {};         // of this lane's experts
};

__device__ __forceinline__ uint32_t mixed(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

// Different experts for lanes below k.
__device__ __forceinline__ int diced(const RoutingDice& dice, int64_t row, const RouterRule& rule) {
  const int lane = threadIdx.x % 32;
  const uint32_t of_row = mixed(dice.seed * 0x9e3779b9u + static_cast<uint32_t>(row) * 0x85ebca6bu) ^ mixed(dice.positions[row]);
  uint32_t draw = mixed(of_row + lane * 0xc2b2ae35u);
  int expert = static_cast<int>(draw % rule.num_experts);
  while (true) {
    const int compared = lane < rule.k ? expert : -1 - lane;
    const bool again = __ffs(__match_any_sync(~0u, compared)) - 1 != lane;
    if (!__any_sync(~0u, again)) return expert;
    if (again) expert = static_cast<int>((draw = mixed(draw + 0x27d4eb2fu + lane)) % rule.num_experts);
  }
}

__device__ __forceinline__ bool is_padding(const int32_t* kv_slots, int64_t row) {
  return kv_slots != nullptr && __ldg(kv_slots + row) < 0;
}

// Counts a row more of an expert, for /metrics.
__device__ __forceinline__ void count_row(uint64_t* load, int expert) {
  if (load != nullptr) atomicAdd(reinterpret_cast<unsigned long long*>(load) + expert, 1ull);
}

// Lane j has choice j of its row; behind the rule's k come the shared experts, whose weights are the caller's to find.
struct Choice {
  int expert;
  float weight;
};

template <int kEach>
__device__ __forceinline__ Choice choose_row(const RouterRule& rule, const float* logits, const float* correction,
                                             const RoutingDice& dice, int64_t row) {
  const RowChoice<kEach> choice(rule, logits, correction);
  const int routed = dice.positions != nullptr ? diced(dice, row, rule) : choice.chosen, lane = threadIdx.x % 32;
  return {lane < rule.k ? routed : rule.num_experts + lane - rule.k, choice.weight};
}

// Lanes k .. of_row - 1 have the shared experts; `of_gate` is x . gate where the rule's model has one.
__device__ __forceinline__ void weigh_shared(const RouterRule& rule, bool gated, float of_gate, Choice& choice) {
  const int lane = threadIdx.x % 32;
  if (lane >= rule.k && lane < rule.of_row()) choice.weight = gated ? __fdividef(1.0f, 1 + __expf(-of_gate)) : 1.0f;
}

// Whether this CTA is the last of so many; what the others wrote can be read then. `arrived` is zero before and after.
__device__ __forceinline__ bool arrives_last(int32_t* arrived, int ctas) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) last = ptx::add_acq_rel(arrived, 1) == ctas - 1;
  __syncthreads();
  if (last && threadIdx.x == 0) *arrived = 0;
  return last;
}

// Calls run(std::integral_constant) with the experts of a lane.
template <typename Run>
void with_experts_a_lane(int experts, const Run& run) {
  if (experts <= 32) return run(std::integral_constant<int, 1>());
  if (experts <= 64) return run(std::integral_constant<int, 2>());
  if (experts <= 128) return run(std::integral_constant<int, 4>());
  if (experts <= 256) return run(std::integral_constant<int, 8>());
  run(std::integral_constant<int, 16>());
}

}  // namespace warpweave::gpu
