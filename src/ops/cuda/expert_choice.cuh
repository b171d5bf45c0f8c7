// A warp chooses the experts of one row (ops/router_rule.h). Lane l holds experts l, l + 32, ...
#pragma once

#include <cstdint>

#include "device/cuda/ptx.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {

// Unsigned numbers in the order of the floats, both zeros alike; NaN is the least.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  if (isnan(x)) return 0;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

template <int kEach>
class RowChoice {
 public:
  // Lane j < k gets the j-th choice and its weight.
  __device__ RowChoice(const RouterRule& rule, const float* logits, const float* correction)
      : rule_(rule), lane_(threadIdx.x % 32) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = i * 32 + lane_;
      score_[i] = e < rule_.num_experts ? __ldcg(logits + e) : -INFINITY;
      if (e >= rule_.num_experts) taken_ |= 1u << i;
    }
    rule_.score == RouterScore::sparse_mixer ? mix() : choose(correction);
  }
  int chosen = 0;
  float weight = 0;

 private:
  __device__ void choose(const float* correction) {
    float total = 1;
    if (rule_.score == RouterScore::softmax && correction == nullptr && rule_.groups == 1) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) choice_[i] = score_[i];
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
        const int e = i * 32 + lane_;
        choice_[i] = __fdividef(score_[i], total) + (correction != nullptr && e < rule_.num_experts ? correction[e] : 0.0f);
      }
      if (rule_.groups > 1) drop_groups();
    }
    const float inverse = __fdividef(1.0f, total);
    float sum = 0;
    for (int j = 0; j < rule_.k; ++j) {
      const Best best = take_best();
      const float of_expert = __shfl_sync(~0u, best.score, best.expert % 32) * inverse;
      sum += of_expert;
      if (lane_ == j) chosen = best.expert, weight = of_expert;
    }
    weight *= rule_.renormalise ? __fdividef(rule_.scale, sum + rule_.sum_epsilon) : rule_.scale;
  }

  __device__ void mix() {
#pragma unroll
    for (int i = 0; i < kEach; ++i) choice_[i] = score_[i];
    for (int j = 0; j < rule_.k; ++j) {
      const uint32_t before = taken_;
      const Best taken = take_best();
      const float best = __shfl_sync(~0u, taken.choice, taken.expert % 32);
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const bool left = (before >> i & 1) == 0;
        if (left && !(__fdividef(best - choice_[i], fmaxf(fabsf(choice_[i]), best)) > 2 * rule_.jitter)) sum += __expf(choice_[i] - best);
      }
      sum = warp_sum(sum);
      if (lane_ == j) chosen = taken.expert, weight = __fdividef(rule_.scale, sum);
    }
  }

  // Scores become exponentials; returns their sum.
  __device__ float soften() {
    float top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) top = fmaxf(top, score_[i]);
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      score_[i] = taken_ >> i & 1 ? 0 : __expf(score_[i] - top);
      sum += score_[i];
    }
    return warp_sum(sum);
  }

  // An expert; its own lane, expert % 32, has its score and choice.
  struct Best {
    int expert;
    float score, choice;
  };

  // The largest choice that is left, ties to the lower index; it is left no more.
  __device__ Best take_best() {
    const Best best = best_among(0, rule_.num_experts);
    if (best.expert % 32 == lane_) taken_ |= 1u << best.expert / 32;
    return best;
  }
  // A lane carries its best's values along: asked for by number, they would stand in local memory.
  __device__ Best best_among(int begin, int end) const {
    uint32_t best = 0;
    Best own = {1 << 30, 0, 0};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = i * 32 + lane_;
      if ((taken_ >> i & 1) != 0 || e < begin || e >= end) continue;
      const uint32_t value = ordered(choice_[i]);
      if (own.expert == 1 << 30 || value > best) best = value, own = {e, score_[i], choice_[i]};
    }
    const uint32_t top = __reduce_max_sync(~0u, best);
    own.expert = __reduce_min_sync(~0u, best == top ? own.expert : 1 << 30);
    return own;
  }

  __device__ void drop_groups() {
    const int size = rule_.num_experts / rule_.groups;
    float of_group = -INFINITY;  // lane g's
    for (int g = 0; g < rule_.groups; ++g) {
      const uint32_t before = taken_;
      const Best best = best_among(g * size, (g + 1) * size);
      float score = __shfl_sync(~0u, best.choice, best.expert % 32);
      if (rule_.group_score == GroupScore::best_two && size > 1) {
        if (best.expert % 32 == lane_) taken_ |= 1u << best.expert / 32;
        const Best second = best_among(g * size, (g + 1) * size);
        score += __shfl_sync(~0u, second.choice, second.expert % 32);
        taken_ = before;
      }
      if (lane_ == g) of_group = score;
    }
    int better = 0;
    for (int g = 0; g < rule_.groups; ++g) {
      const uint32_t other = ordered(__shfl_sync(~0u, of_group, g)), own = ordered(of_group);
      better += other > own || (other == own && g < lane_);
    }
    const uint32_t kept = __ballot_sync(~0u, lane_ < rule_.groups && better < rule_.kept_groups);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = i * 32 + lane_;
      if (e < rule_.num_experts && (kept >> e / size & 1) == 0) taken_ |= 1u << i;
    }
  }

  const RouterRule& rule_;
  const int lane_;
  float score_[kEach], choice_[kEach];
  uint32_t taken_ = 0;
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

// Lane j has choice j of its row.
struct Choice {
  int expert;
  float weight;
};

template <int kEach>
__device__ __forceinline__ Choice choose_row(const RouterRule& rule, const float* logits, const float* correction,
                                             const RoutingDice& dice, int64_t row) {
  const RowChoice<kEach> choice(rule, logits, correction);
  return {dice.positions != nullptr ? diced(dice, row, rule) : choice.chosen, choice.weight};
}

// Lanes k .. of_row - 1 have the shared experts; `of_gate` is x . gate where the rule's model has one.
__device__ __forceinline__ void add_shared(const RouterRule& rule, bool gated, float of_gate, Choice& choice) {
  const int lane = threadIdx.x % 32;
  if (lane < rule.k || lane >= rule.of_row()) return;
  choice.expert = rule.num_experts + lane - rule.k;
  choice.weight = gated ? __fdividef(1.0f, 1 + __expf(-of_gate)) : 1.0f;
}

// Whether this CTA is the last of its grid; what the others wrote can be read then. `arrived` is zero before and after.
__device__ __forceinline__ bool arrives_last(int32_t* arrived) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) last = ptx::add_acq_rel(arrived, 1) == static_cast<int>(gridDim.x) - 1;
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
