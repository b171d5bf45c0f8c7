// How a row of router logits becomes k experts and their weights: one rule for the CPU (moe.h) and the GPU
// (cuda/gpu_ops.h). Plain data, passed to kernels by value.
//
//   score = softmax or sigmoid of the logits, over all experts
//   choice = score + correction bias, where the model has one
//   groups: the experts stand in `groups` equal groups, of which the `kept_groups` with the best group score
//           (by choice) are left to choose from
//   the k experts with the largest choice, in descending order, ties to the lower index
//   weight = score of the chosen expert (without the bias), divided by the sum over the chosen plus sum_epsilon
//            where `renormalise`, times `scale`
//
//   shared experts, where they are multiplied with the routed ones (on a GPU): `shared` more that every row has after
//   its k,
//           with weight 1 or one gate of the row for all of them; they follow the num_experts
//
// RouterScore::sparse_mixer is Phi-3.5-MoE's own rule for k = 2 (SparseMixer-v2, Liu et al. 2024, at inference):
// expert by expert, the largest remaining logit, weighted by its softmax over those remaining logits l with
// (best - l) / max(|l|, best) <= 2 * jitter. It knows no groups, bias or renormalisation.
#pragma once

#include <cstdint>

namespace warpweave {

inline constexpr int kMaxExperts = 1024;
inline constexpr int kMaxExpertsPerToken = 64;
// Of the GPU's kernels, which keep a row's experts in the registers of a warp.
inline constexpr int kMaxGpuExperts = 512, kMaxGpuExpertsPerToken = 32, kMaxGpuGroups = 32;
inline constexpr int kMaxGpuSharedExperts = 8;

enum class RouterScore : uint8_t { softmax, sigmoid, sparse_mixer };

// The score of a group: its best choice (DeepSeek V2), or the sum of its best two (DeepSeek V3).
enum class GroupScore : uint8_t { best, best_two };

struct RouterRule {
  int num_experts = 0;        // 1..kMaxExperts; 0: the model has none
  int k = 0;                  // 1..min(num_experts, kMaxExpertsPerToken)
  RouterScore score = RouterScore::softmax;
  bool renormalise = true;
  float sum_epsilon = 0;
  float scale = 1;
  int groups = 1;             // divides num_experts
  int kept_groups = 1;
  GroupScore group_score = GroupScore::best;
  float jitter = 0.01f;       // sparse_mixer only
  int shared = 0;             // 0..kMaxGpuSharedExperts

  constexpr int all_experts() const { return num_experts + shared; }
  constexpr int of_row() const { return k + shared; }
};

}  // namespace warpweave
