// Shared experts whose gate and up are multiplied beside the kernels that make the plan. Skipped without a GPU.
#include <gtest/gtest.h>

#include <random>

#include "base/float16.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/cluster_gemm.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/testing/expert_memory.h"

namespace warpweave::gpu {
namespace {

constexpr int kLayers = 4, kShared = 2;

// Layers behind each other, each the norm of what the last one left, its router, its experts: what a step of `rows` rows has.
class EarlyLayers {
 public:
  // The shape's experts and choices are with the shared ones.
  explicit EarlyLayers(const ExpertShape& shape)
      : shape_(shape), memory_(shape), rule_{.num_experts = shape.experts - kShared, .k = shape.k - kShared, .shared = kShared} {
    std::mt19937 random(21);
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> norm(shape.hidden), x(shape.rows * shape.hidden);
    std::vector<uint16_t> router(rule_.num_experts * shape.hidden);
    for (float& value : norm) value = normal(random);
    for (float& value : x) value = normal(random);
    for (uint16_t& value : router) value = f32_to_bf16(0.05f * normal(random));
    x_ = x;
    norm_ = memory_.get<float>(shape.hidden);
    router_ = memory_.get<uint16_t>(rule_.num_experts * shape.hidden);
    to_device(norm, norm_);
    to_device(router, router_);
  }

  std::vector<float> run(int64_t rows, bool early) {
    const int64_t hidden = shape_.hidden, pairs = rows * rule_.of_row();
    to_device(x_, memory_.x);
    must(cudaMemset(memory_.act, 0xff, pairs * shape_.ffn * 2));
    for (int layer = 0; layer < kLayers; ++layer) {
      rms_norm({.x = memory_.x, .rows = rows, .cols = hidden, .weight = norm_, .out = memory_.h}, nullptr);
      const GpuLinear router = {.weight = router_, .in_features = hidden, .out_features = rule_.num_experts};
      const GemmCall call = {.linear = &router, .x = memory_.h, .rows = rows, .y = memory_.logits, .y_dtype = DType::f32, .y_stride = rule_.num_experts, .settles = early};
      cluster_gemm(call, cluster_plan(call), nullptr);
      plan_experts({.logits = memory_.logits, .rows = rows, .rule = rule_, .tile_places = kEarlyTilePlaces, .plan = memory_.plan}, nullptr);
      multiply(rows, early);
      combine_experts({.sums = {memory_.rows, memory_.plan.place_of, memory_.plan.weights, rule_.of_row()}, .rows = rows, .hidden = hidden, .y = memory_.x}, nullptr);
    }
    return from_device(memory_.x, rows * hidden);
  }

 private:
  void multiply(int64_t rows, bool early) {
    const int64_t row_bytes = shape_.hidden * 2;
    const int spread = early ? rule_.k : rule_.of_row();
    spread_rows({memory_.h, rows, row_bytes, memory_.plan.place_of, spread, memory_.rows, rule_.of_row(), early}, nullptr);
    ExpertGemmCall call = {.weights = memory_.gate_up, .x = memory_.rows, .places = rows * rule_.of_row(), .plan = memory_.plan, .tile_places = kEarlyTilePlaces, .plan_settled = !early, .y = memory_.act};
    if (early) call.early = {memory_.h, rows, kShared};
    expert_gemm(call, nullptr);
    call.weights = memory_.down;
    call.x = memory_.act;
    call.early = {};
    call.plan_settled = true;
    call.y = memory_.rows;
    expert_gemm(call, nullptr);
  }

  ExpertShape shape_;
  ExpertMemory memory_;
  RouterRule rule_;
  std::vector<float> x_;
  float* norm_ = nullptr;
  uint16_t* router_ = nullptr;
};

TEST(GpuEarlyExpertsTest, TheyChangeNoBits) {
  if (!probe_cuda_device().ok() || !expert_gemm_takes({.rows = 64, .cols = 64})) GTEST_SKIP() << "no WGMMA";
  // A tile and several, as full as others and less so; two warpgroups a tile and one.
  for (const ExpertShape& shape : {ExpertShape{66, 8, 2048, 1408, 300}, ExpertShape{18, 4, 512, 256, 256}, ExpertShape{34, 6, 1032, 104, 200}}) {
    EarlyLayers layers(shape);
    for (const int64_t rows : {17, 64, 65, 150, 200, 240, 256, 300}) {
      if (rows > shape.rows) continue;
      const auto expected = layers.run(rows, false);
      ASSERT_TRUE(expected[0] == expected[0]);
      EXPECT_EQ(layers.run(rows, true), expected) << shape.experts << " experts, " << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace warpweave::gpu
