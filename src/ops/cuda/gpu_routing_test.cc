// The routing of experts on the GPU against the host's router: choices, weights, places and tiles, with ties, groups,
// corrections and shared experts. Skipped without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
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

// Further tiles of 16 places for each expert that was chosen, as count_tiles() weighs them.
bool rows_crowd(const ExpertPlan& plan, const RouteCase& c) {
  const auto offsets = from_device(plan.offsets, c.rule.all_experts() + 1);
  int chosen = 0, again = 0;
  for (int e = 0; e < c.rule.all_experts(); ++e) {
    const int count = offsets[e + 1] - offsets[e], places = expert_tile_places(count, 16);
    chosen += count > 0;
    again += count > 0 ? (count + places - 1) / places - 1 : 0;
  }
  return 4 * again > chosen;
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
  call.tile_places = 16;
  call.crowded_places = 64;
  plan_experts(call, nullptr);
  const bool crowded = from_device(memory.plan.tiles, 1)[0].crowded != 0;
  EXPECT_EQ(crowded, rows_crowd(memory.plan, c));
  expect_plan(memory.plan, c, crowded ? 64 : 16);
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

// Norm, router and choice of rows that share places, in one kernel.
struct NormRouteCase {
  int64_t rows, hidden;
  RouterRule rule;
  DType dtype = DType::bf16, router_dtype = DType::bf16;
  bool correction = false, bias = false, shared_gate = false;
};

class NormRouteTest : public testing::TestWithParam<NormRouteCase> {
 protected:
  void SetUp() override {
    if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
    const NormRouteCase& c = GetParam();
    const int experts = c.rule.num_experts;
    memory_ = std::make_unique<ExpertMemory>(
        ExpertShape{.experts = c.rule.all_experts(), .k = c.rule.of_row(), .hidden = c.hidden, .ffn = 16, .rows = kSharedRows});
    x_ = drawn(c.rows * c.hidden, 3);
    norm_ = drawn(c.hidden, 1);
    gate_ = drawn(c.hidden, 0.05f);
    bias_ = drawn(experts, 1);
    correction_ = drawn(experts, 0.2f);
    router_ = drawn(experts * c.hidden, 2 / std::sqrt(static_cast<float>(c.hidden)));
    for (float& w : router_) w = rounded(w, c.router_dtype);
    for (int e = 3; e < experts; e += 7) {  // ties
      std::copy_n(router_.begin() + e / 2 * c.hidden, c.hidden, router_.begin() + e * c.hidden);
      bias_[e] = bias_[e / 2];
      correction_[e] = correction_[e / 2];
    }
    call_ = {
        .x = on_device(x_),
        .rows = c.rows,
        .hidden = c.hidden,
        .norm_weight = on_device(norm_),
        .norm_weight_offset = 1,
        .router = router_on_device(),
        .router_dtype = c.router_dtype,
        .router_bias = c.bias ? on_device(bias_) : nullptr,
        .rule = c.rule,
        .correction = c.correction ? on_device(correction_) : nullptr,
        .h = memory_->h,
        .dtype = c.dtype,
        .codes = memory_->get<uint8_t>(c.rows * c.hidden),
        .code_scales = memory_->get<float>(c.rows),
        .logits = memory_->logits,
        .plan = memory_->plan,
        .shared_gate = c.shared_gate ? on_device(gate_) : nullptr,
    };
  }

  std::vector<float> drawn(int64_t count, float scale) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> out(count);
    for (float& v : out) v = normal(random_);
    return out;
  }
  float* on_device(const std::vector<float>& values) {
    float* const out = memory_->get<float>(static_cast<int64_t>(values.size()));
    to_device(values, out);
    return out;
  }
  void* router_on_device() {
    const DType dtype = GetParam().router_dtype;
    if (dtype == DType::f32) return on_device(router_);
    std::vector<uint16_t> bits;
    for (const float w : router_) bits.push_back(dtype == DType::bf16 ? f32_to_bf16(w) : f32_to_f16(w));
    auto* const out = memory_->get<uint16_t>(static_cast<int64_t>(bits.size()));
    to_device(bits, out);
    return out;
  }
  double normed(int64_t row, int64_t i) const {
    const NormRouteCase& c = GetParam();
    const float* const x = x_.data() + row * c.hidden;
    if (i == 0) {
      double squares = 0;
      for (int64_t j = 0; j < c.hidden; ++j) squares += double{x[j]} * x[j];
      scale_ = 1 / std::sqrt(squares / static_cast<double>(c.hidden) + 1e-6);
    }
    return x[i] * scale_ * (norm_[i] + 1.0);
  }
  std::vector<double> normed_row(int64_t row) const {
    std::vector<double> out;
    for (int64_t i = 0; i < GetParam().hidden; ++i) out.push_back(normed(row, i));
    return out;
  }
  static double dot(const std::vector<double>& a, const float* b) { return std::inner_product(a.begin(), a.end(), b, 0.0); }

  // Every expert that is chosen has one tile, shared ones first, and every row its place there.
  void expect_tiles() const {
    const NormRouteCase& c = GetParam();
    const int64_t pairs = c.rows * c.rule.of_row();
    const auto chosen = from_device(call_.plan.chosen, pairs), place_of = from_device(call_.plan.place_of, pairs);
    const auto tiles = from_device(call_.plan.tiles, from_device(call_.plan.num_tiles, 1)[0]);
    const std::set<int32_t> active(chosen.begin(), chosen.end());
    ASSERT_EQ(tiles.size(), active.size());
    for (size_t t = 0; t < tiles.size(); ++t) {
      EXPECT_TRUE(active.contains(tiles[t].expert));
      EXPECT_EQ(tiles[t].expert >= c.rule.num_experts, static_cast<int>(t) < c.rule.shared);
      EXPECT_EQ(tiles[t].first, static_cast<int>(t) * kSharedRows);
      EXPECT_EQ(tiles[t].count, c.rows);
    }
    for (int64_t pair = 0; pair < pairs; ++pair) {
      ASSERT_EQ(place_of[pair] % kSharedRows, pair / c.rule.of_row());
      ASSERT_EQ(tiles.at(place_of[pair] / kSharedRows).expert, chosen[pair]);
    }
  }

  std::mt19937 random_{9};
  std::unique_ptr<ExpertMemory> memory_;
  std::vector<float> x_, norm_, gate_, bias_, correction_, router_;
  NormRouteCall call_;
  mutable double scale_ = 0;
};

TEST_P(NormRouteTest, NormsAndChoosesAsTheHostDoes) {
  const NormRouteCase& c = GetParam();
  ASSERT_TRUE(norm_route_takes(call_));
  norm_route(call_, nullptr);
  const auto logits = from_device(call_.logits, c.rows * c.rule.num_experts);
  const auto h = from_device(static_cast<const uint16_t*>(call_.h), c.rows * c.hidden);
  const auto codes = from_device(call_.codes, c.rows * c.hidden);
  const auto scales = from_device(call_.code_scales, c.rows);
  std::vector<float> shared_weights(c.rows, 1.0f);
  for (int64_t row = 0; row < c.rows; ++row) {
    const std::vector<double> expected = normed_row(row);
    double largest = 0;
    for (const double v : expected) largest = std::max(largest, std::abs(v));
    EXPECT_NEAR(scales[row], largest / 448, largest * 1e-6);
    for (int64_t i = 0; i < c.hidden; ++i) {
      const uint16_t bits = h[row * c.hidden + i];
      const double value = c.dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
      ASSERT_NEAR(value, expected[i], 0.004 * std::abs(expected[i]) + 1e-6);
      ASSERT_NEAR(e4m3_to_f32(codes[row * c.hidden + i]) * scales[row], expected[i], 0.0626 * std::abs(expected[i]) + largest * 1e-5);
    }
    for (int e = 0; e < c.rule.num_experts; ++e) {
      const double logit = dot(expected, router_.data() + e * c.hidden) + (c.bias ? bias_[e] : 0.0f);
      ASSERT_NEAR(logits[row * c.rule.num_experts + e], logit, 2e-4) << "row " << row << ", expert " << e;
    }
    if (c.shared_gate) shared_weights[row] = static_cast<float>(1 / (1 + std::exp(-dot(expected, gate_.data()))));
  }
  const auto [experts, weights] = host_choices({c.rows, c.rule}, logits, c.correction ? correction_.data() : nullptr, shared_weights);
  const auto chosen = from_device(call_.plan.chosen, experts.size());
  const auto got = from_device(call_.plan.weights, experts.size());
  for (size_t i = 0; i < experts.size(); ++i) {
    ASSERT_EQ(chosen[i], experts[i]) << i;
    ASSERT_NEAR(got[i], weights[i], 2e-5f + 1e-4f * weights[i]) << i;
  }
  expect_tiles();
}

TEST_P(NormRouteTest, PaddingTakesTheFirstRowsExpertsAndIsNotCounted) {
  const NormRouteCase& c = GetParam();
  const int64_t real = (c.rows + 1) / 2, each = c.rule.of_row();
  std::vector<int32_t> slots(c.rows, -1);
  std::iota(slots.begin(), slots.begin() + real, 0);
  int32_t* const device_slots = memory_->get<int32_t>(c.rows);
  to_device(slots, device_slots);
  call_.kv_slots = device_slots;
  call_.plan.load = memory_->get<uint64_t>(c.rule.all_experts());
  to_device(std::vector<uint64_t>(c.rule.all_experts()), call_.plan.load);
  norm_route(call_, nullptr);
  expect_tiles();
  const auto chosen = from_device(call_.plan.chosen, c.rows * each);
  std::vector<uint64_t> expected(c.rule.all_experts());
  for (int64_t pair = 0; pair < c.rows * each; ++pair) {
    const int32_t expert = chosen[pair];
    ASSERT_EQ(expert, pair < real * each ? expert : chosen[pair % each]);
    if (pair < real * each) ++expected[expert];
  }
  EXPECT_EQ(from_device(call_.plan.load, c.rule.all_experts()), expected);
}

const RouterRule kDeepSeekV3 = {
    .num_experts = 256,
    .k = 8,
    .score = RouterScore::sigmoid,
    .sum_epsilon = 1e-20f,
    .scale = 2.5f,
    .groups = 8,
    .kept_groups = 4,
    .group_score = GroupScore::best_two,
    .shared = 1,
};
const NormRouteCase kNormRoutes[] = {
    {1, 2048, {.num_experts = 128, .k = 8}},
    {1, 2048, {.num_experts = 512, .k = 10, .shared = 1}, DType::bf16, DType::bf16, false, false, true},
    {2, 264, {.num_experts = 8, .k = 2}},
    {3, 2880, {.num_experts = 32, .k = 4}, DType::bf16, DType::bf16, false, true},
    {8, 2880, {.num_experts = 32, .k = 4}, DType::f16, DType::f16, false, true},
    {8, 2048, {.num_experts = 512, .k = 10, .shared = 1}, DType::bf16, DType::bf16, false, false, true},
    {5, 2048, {.num_experts = 512, .k = 10, .shared = 1}, DType::bf16, DType::f32, false, false, true},
    {8, 2048, {.num_experts = 128, .k = 8}},
    {8, 2048, {.num_experts = 64, .k = 6, .renormalise = false, .shared = 2}, DType::f16, DType::f32},
    {4, 4096, kDeepSeekV3, DType::bf16, DType::f32, true},
    {7, 1032, {.num_experts = 160, .k = 6, .renormalise = false, .scale = 16, .groups = 8, .kept_groups = 3}},
    {8, 4096, {.num_experts = 16, .k = 2, .score = RouterScore::sparse_mixer, .renormalise = false}},
    {6, 5120, {.num_experts = 384, .k = 8, .score = RouterScore::sigmoid, .sum_epsilon = 1e-20f}, DType::bf16, DType::bf16, true},
    {2, 40, {.num_experts = 3, .k = 3}},
};
INSTANTIATE_TEST_SUITE_P(Rules, NormRouteTest, testing::ValuesIn(kNormRoutes));

}  // namespace
}  // namespace warpweave::gpu
