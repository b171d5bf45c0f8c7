// The routing of experts on the GPU against the host's router: choices, weights, places and tiles, with ties, groups,
// corrections and shared experts. Skipped without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "device/cuda/cuda_device.h"
#include "ops/cuda/testing/expert_memory.h"
#include "ops/router.h"

namespace warpweave::gpu {
namespace {

struct RouteCase {
  int64_t rows;
  RouterRule rule;
  bool correction = false;
  bool shared_gate = false;
};

class RouteTest : public testing::TestWithParam<RouteCase> {
 protected:
  void SetUp() override {
    if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  }
};

// Pairs are placed once each, by expert, and tiles cover the places.
void expect_plan(const ExpertPlan& plan, const RouteCase& c, int tile_places) {
  const int64_t pairs = c.rows * c.rule.of_row();
  const auto chosen = from_device(plan.chosen, pairs), offsets = from_device(plan.offsets, c.rule.all_experts() + 1);
  const auto place_of = from_device(plan.place_of, pairs);
  const int num_tiles = from_device(plan.num_tiles, 1)[0];
  ASSERT_LE(num_tiles, most_expert_tiles(pairs, c.rule.all_experts(), tile_places));
  auto tiles = from_device(plan.tiles, num_tiles);
  const int first_expert = tiles.at(0).expert;
  EXPECT_TRUE(c.rule.shared == 0 || first_expert == c.rule.num_experts) << "tiles of shared experts come first";
  std::sort(tiles.begin(), tiles.end(), [](const ExpertTile& a, const ExpertTile& b) { return a.first < b.first; });
  ASSERT_EQ(offsets.front(), 0);
  ASSERT_EQ(offsets.back(), pairs);
  std::vector<bool> taken(pairs);
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int place = place_of[pair], expert = chosen[pair];
    ASSERT_TRUE(place >= offsets[expert] && place < offsets[expert + 1]);
    ASSERT_FALSE(taken[place]);
    const bool in_order = expert < c.rule.num_experts || place == offsets[expert] + pair / c.rule.of_row();
    ASSERT_TRUE(in_order) << "shared experts have the rows in their order";
    taken[place] = true;
  }
  int next = 0;
  for (const ExpertTile& tile : tiles) {
    ASSERT_EQ(tile.first, next);
    ASSERT_TRUE(tile.count >= 1 && tile.count <= tile_places);
    ASSERT_TRUE(tile.first >= offsets[tile.expert] && tile.first + tile.count <= offsets[tile.expert + 1]);
    next += tile.count;
  }
  ASSERT_EQ(next, pairs);
}

ExpertShape shape_of(const RouteCase& c) {
  return {.experts = c.rule.all_experts(), .k = c.rule.of_row(), .hidden = 16, .ffn = 16, .rows = c.rows};
}

// The host's choices, and after them each row's shared experts with `shared_weights` of the rows.
struct Choices {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};
Choices host_choices(const RouteCase& c, const std::vector<float>& logits, const float* correction,
                     const std::vector<float>& shared_weights) {
  std::vector<int32_t> experts(c.rows * c.rule.k);
  std::vector<float> weights(c.rows * c.rule.k);
  choose_experts({.logits = logits.data(), .rows = c.rows, .rule = c.rule, .correction = correction,
                  .experts_out = experts.data(), .weights_out = weights.data()});
  Choices out;
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int j = 0; j < c.rule.of_row(); ++j) {
      const bool routed = j < c.rule.k;
      out.experts.push_back(routed ? experts[row * c.rule.k + j] : c.rule.num_experts + j - c.rule.k);
      out.weights.push_back(routed ? weights[row * c.rule.k + j] : shared_weights[row]);
    }
  }
  return out;
}

TEST_P(RouteTest, ChoosesAsTheHostDoes) {
  const RouteCase& c = GetParam();
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(c.rows * c.rule.num_experts), correction(c.rule.num_experts);
  for (float& x : logits) x = normal(random);
  for (float& x : correction) x = normal(random) * 0.1f;
  for (int64_t i = 0; i < c.rows * c.rule.num_experts; i += 5) logits[i] = std::round(logits[i]);  // ties
  constexpr int kHidden = 264;
  std::vector<float> x(c.rows * kHidden), gate(kHidden), shared_weights(c.rows, 1.0f);
  for (float& value : x) value = normal(random) * 0.1f;
  for (float& value : gate) value = normal(random) * 0.1f;
  for (int64_t row = 0; c.shared_gate && row < c.rows; ++row) {
    const double product = std::inner_product(gate.begin(), gate.end(), x.begin() + row * kHidden, 0.0);
    shared_weights[row] = static_cast<float>(1 / (1 + std::exp(-product)));
  }
  const auto [expected, weights] = host_choices(c, logits, c.correction ? correction.data() : nullptr, shared_weights);
  const auto pairs = static_cast<int64_t>(expected.size());
  ExpertMemory memory(shape_of(c));
  to_device(logits, memory.logits);
  float* const device_x = memory.get<float>(c.rows * kHidden);
  float* const device_gate = memory.get<float>(kHidden);
  to_device(x, device_x);
  to_device(gate, device_gate);
  float* const device_correction = memory.get<float>(c.rule.num_experts);
  to_device(correction, device_correction);
  ExpertPlanCall call = {.logits = memory.logits, .rows = c.rows, .rule = c.rule,
                         .correction = c.correction ? device_correction : nullptr, .tile_places = 64, .plan = memory.plan,
                         .shared_gate = {device_x, DType::f32, kHidden, c.shared_gate ? device_gate : nullptr}};
  plan_experts(call, nullptr);
  const auto chosen = from_device(memory.plan.chosen, pairs);
  const auto got = from_device(memory.plan.weights, pairs);
  int different = 0;
  for (int64_t i = 0; i < pairs; ++i) {
    if (chosen[i] != expected[i]) {
      ++different;  // computed scores may round to another order where they are nearly equal
      continue;
    }
    ASSERT_NEAR(got[i], weights[i], 2e-5f + 1e-4f * weights[i]) << i;
  }
  const bool computed = c.correction || c.rule.groups > 1;
  EXPECT_LE(different, computed ? pairs / 500 : 0);
  expect_plan(memory.plan, c, 64);
  call.tile_places = 192;
  plan_experts(call, nullptr);
  expect_plan(memory.plan, c, 192);
}

TEST_P(RouteTest, DiceGiveEveryRowDifferentExperts) {
  const RouteCase& c = GetParam();
  ExpertMemory memory(shape_of(c));
  to_device(std::vector<float>(c.rows * c.rule.num_experts, 1.0f), memory.logits);
  std::vector<int32_t> positions(c.rows);
  for (int64_t i = 0; i < c.rows; ++i) positions[i] = static_cast<int32_t>(i % 7 + 1000);
  int32_t* const device_positions = memory.get<int32_t>(c.rows);
  to_device(positions, device_positions);
  plan_experts({.logits = memory.logits, .rows = c.rows, .rule = c.rule, .plan = memory.plan, .dice = {device_positions, 3}}, nullptr);
  const int each = c.rule.of_row();
  const auto chosen = from_device(memory.plan.chosen, c.rows * each);
  for (int64_t row = 0; row < c.rows; ++row) {
    const std::set<int32_t> of_row(chosen.begin() + row * each, chosen.begin() + (row + 1) * each);
    ASSERT_EQ(static_cast<int>(of_row.size()), each);
    ASSERT_TRUE(*of_row.begin() >= 0 && *of_row.rbegin() < c.rule.all_experts());
    ASSERT_EQ(std::distance(of_row.lower_bound(c.rule.num_experts), of_row.end()), c.rule.shared);
  }
  expect_plan(memory.plan, c, 64);
}

// Rows of padding are the last ones.
TEST_P(RouteTest, PaddingTakesTheFirstRowsExpertsAndIsNotCounted) {
  const RouteCase& c = GetParam();
  const int64_t real = (c.rows + 1) / 2, each = c.rule.of_row();
  std::mt19937 random(6);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(c.rows * c.rule.num_experts);
  for (float& x : logits) x = normal(random);
  std::vector<int32_t> slots(c.rows, -1);
  std::iota(slots.begin(), slots.begin() + real, 0);
  ExpertMemory memory(shape_of(c));
  to_device(logits, memory.logits);
  int32_t* const device_slots = memory.get<int32_t>(c.rows);
  to_device(slots, device_slots);
  memory.plan.load = memory.get<uint64_t>(c.rule.all_experts());
  to_device(std::vector<uint64_t>(c.rule.all_experts()), memory.plan.load);
  plan_experts({.logits = memory.logits, .rows = c.rows, .rule = c.rule, .plan = memory.plan, .kv_slots = device_slots}, nullptr);
  expect_plan(memory.plan, c, 64);
  const auto chosen = from_device(memory.plan.chosen, c.rows * each);
  std::vector<uint64_t> expected(c.rule.all_experts());
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t j = 0; j < each; ++j) {
      const int32_t expert = chosen[row * each + j];
      ASSERT_EQ(expert, row < real ? expert : chosen[j]) << row;
      if (row < real) ++expected[expert];
    }
  }
  EXPECT_EQ(from_device(memory.plan.load, c.rule.all_experts()), expected);
}

const RouteCase kRoutes[] = {
    {1, {.num_experts = 8, .k = 2}},
    {7, {.num_experts = 128, .k = 8}},
    {256, {.num_experts = 128, .k = 8, .renormalise = false}},
    {257, {.num_experts = 60, .k = 4, .renormalise = false}},
    {1000, {.num_experts = 512, .k = 10}},
    {4500, {.num_experts = 128, .k = 8}},
    {4500, {.num_experts = 64, .k = 6, .shared = 2}},
    {64, {.num_experts = 32, .k = 16, .scale = 2.5f}},
    {333, {.num_experts = 256, .k = 8, .score = RouterScore::sigmoid, .sum_epsilon = 1e-20f, .scale = 2.5f, .groups = 8,
           .kept_groups = 4, .group_score = GroupScore::best_two}, true},
    {100, {.num_experts = 160, .k = 6, .renormalise = false, .scale = 16, .groups = 8, .kept_groups = 3}},
    {100, {.num_experts = 128, .k = 8, .score = RouterScore::sigmoid, .sum_epsilon = 1e-20f}, true},
    {200, {.num_experts = 16, .k = 2, .score = RouterScore::sparse_mixer, .renormalise = false}},
    {5, {.num_experts = 3, .k = 3}},
    {3, {.num_experts = 64, .k = 6, .renormalise = false, .shared = 2}},
    {300, {.num_experts = 64, .k = 6, .renormalise = false, .shared = 2}},
    {64, {.num_experts = 512, .k = 10, .shared = 1}, false, true},
    {700, {.num_experts = 60, .k = 4, .renormalise = false, .shared = 8}, false, true},
};
INSTANTIATE_TEST_SUITE_P(Rules, RouteTest, testing::ValuesIn(kRoutes));

}  // namespace
}  // namespace warpweave::gpu
