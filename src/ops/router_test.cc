#include "ops/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace warpweave {
namespace {

struct Choice {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Choice choose(const RouterRule& rule, const std::vector<float>& logits, const float* correction = nullptr) {
  const int64_t rows = static_cast<int64_t>(logits.size()) / rule.num_experts;
  Choice out{std::vector<int32_t>(rows * rule.k), std::vector<float>(rows * rule.k)};
  EXPECT_TRUE(check_router_rule(rule).ok()) << check_router_rule(rule).message();
  choose_experts({.logits = logits.data(), .rows = rows, .rule = rule, .correction = correction,
                  .experts_out = out.experts.data(), .weights_out = out.weights.data()});
  return out;
}

TEST(Router, SoftmaxPicksTheLargestAndBreaksTiesLow) {
  const std::vector<float> logits = {1, 3, 3, -2, 0, 2, 3, 1};
  double all = 0;
  for (const float v : logits) all += std::exp(v);
  Choice got = choose({.num_experts = 8, .k = 4, .renormalise = false}, logits);
  EXPECT_EQ(got.experts, (std::vector<int32_t>{1, 2, 6, 5}));
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(got.weights[i], std::exp(logits[got.experts[i]]) / all, 1e-6);
  got = choose({.num_experts = 8, .k = 4, .renormalise = true, .scale = 2}, logits);
  EXPECT_NEAR(got.weights[3], 2 * std::exp(2) / (3 * std::exp(3) + std::exp(2)), 1e-6);
}

TEST(Router, TheCorrectionChoosesButDoesNotWeigh) {
  const std::vector<float> logits = {0.5f, 0.0f, -1.0f, 0.4f};
  const float correction[] = {0, 0, 2, 0};
  const Choice got = choose({.num_experts = 4, .k = 2, .score = RouterScore::sigmoid, .renormalise = false,
                             .scale = 1.5f}, logits, correction);
  EXPECT_EQ(got.experts, (std::vector<int32_t>{2, 0}));
  EXPECT_NEAR(got.weights[0], 1.5 / (1 + std::exp(1.0)), 1e-6);
  EXPECT_NEAR(got.weights[1], 1.5 / (1 + std::exp(-0.5)), 1e-6);
}

// The best expert stands in a group whose best two together lose.
TEST(Router, GroupsAreJudgedByTheirBestTwoOrTheirBest) {
  const std::vector<float> logits = {3, -4, 1, 1, 0, 0, -1, -1};
  RouterRule rule{.num_experts = 8, .k = 2, .score = RouterScore::sigmoid, .groups = 4, .kept_groups = 1,
                  .group_score = GroupScore::best_two};
  EXPECT_EQ(choose(rule, logits).experts, (std::vector<int32_t>{2, 3}));
  rule.group_score = GroupScore::best;
  EXPECT_EQ(choose(rule, logits).experts, (std::vector<int32_t>{0, 1}));
  rule.kept_groups = 2;
  EXPECT_EQ(choose(rule, logits).experts, (std::vector<int32_t>{0, 2}));
  // Equal groups: the lower ones.
  EXPECT_EQ(choose(rule, std::vector<float>(8, 0.5f)).experts, (std::vector<int32_t>{0, 1}));
}

// A negative choice inside a kept group is still better than any outside.
TEST(Router, DroppedGroupsAreNeverChosen) {
  const std::vector<float> logits = {1, 1, 1, 1};
  const float correction[] = {-3, -2, -8, -8};
  const RouterRule rule{.num_experts = 4, .k = 2, .score = RouterScore::sigmoid, .groups = 2, .kept_groups = 1,
                        .group_score = GroupScore::best_two};
  EXPECT_EQ(choose(rule, logits, correction).experts, (std::vector<int32_t>{1, 0}));
}

TEST(Router, SparseMixerWeighsByTheSoftmaxOverWhatIsNearTheBest) {
  const RouterRule rule{.num_experts = 4, .k = 2, .score = RouterScore::sparse_mixer, .jitter = 0.1f};
  // 2.0 keeps 1.9 (0.05 <= 0.2) and 1.7 (0.15), not 1.0; then 1.9 keeps 1.7.
  const Choice got = choose(rule, {1.0f, 2.0f, 1.7f, 1.9f});
  EXPECT_EQ(got.experts, (std::vector<int32_t>{1, 3}));
  EXPECT_NEAR(got.weights[0], 1 / (1 + std::exp(-0.3) + std::exp(-0.1)), 1e-5);
  EXPECT_NEAR(got.weights[1], 1 / (1 + std::exp(-0.2)), 1e-5);
}

TEST(Router, ExpertsAreDistinctAndInRangeWhateverTheLogits) {
  std::mt19937 random(3);
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const float odd[] = {nan, inf, -inf, 0, -0.0f, 1e30f, -1e30f};
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid, RouterScore::sparse_mixer}) {
    for (int round = 0; round < 200; ++round) {
      std::vector<float> logits(16);
      for (float& x : logits) x = odd[random() % std::size(odd)];
      const int groups = score == RouterScore::sparse_mixer ? 1 : 4;
      Choice got = choose({.num_experts = 16, .k = 4, .score = score, .groups = groups,
                           .kept_groups = groups == 1 ? 1 : 2}, logits);
      for (const int32_t e : got.experts) ASSERT_TRUE(e >= 0 && e < 16);
      if (score == RouterScore::sparse_mixer) continue;  // may run out of experts that are not -inf
      std::sort(got.experts.begin(), got.experts.end());
      ASSERT_EQ(std::adjacent_find(got.experts.begin(), got.experts.end()), got.experts.end());
    }
  }
  EXPECT_EQ(choose({.num_experts = 4, .k = 1}, {nan, 1, 2, nan}).experts[0], 2);
}

TEST(Router, RulesThatCannotBeFollowedAreRefused) {
  const RouterRule good{.num_experts = 8, .k = 2, .groups = 4, .kept_groups = 2};
  EXPECT_TRUE(check_router_rule(good).ok());
  const auto refused = [&](auto change) {
    RouterRule rule = good;
    change(rule);
    return !check_router_rule(rule).ok();
  };
  EXPECT_TRUE(refused([](RouterRule& r) { r.num_experts = kMaxExperts + 4; }));
  EXPECT_TRUE(refused([](RouterRule& r) { r.k = 0; }));
  EXPECT_TRUE(refused([](RouterRule& r) { r.k = 9; }));
  EXPECT_TRUE(refused([](RouterRule& r) { r.groups = 3; }));
  EXPECT_TRUE(refused([](RouterRule& r) { r.kept_groups = 5; }));
  EXPECT_TRUE(refused([](RouterRule& r) { r.k = 5; }));
  EXPECT_TRUE(refused([](RouterRule& r) { r.groups = 8; r.kept_groups = 4; r.group_score = GroupScore::best_two; }));
  EXPECT_TRUE(refused([](RouterRule& r) { r.scale = std::numeric_limits<float>::infinity(); }));
}

}  // namespace
}  // namespace warpweave
