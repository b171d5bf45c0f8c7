// PackedLinear against a scalar f64 reference, for every tier this CPU can run.
#include "ops/linear.h"

#include "ops/linear_testing.h"

namespace warpweave {
namespace {

using namespace linear_testing;

class PlainDtype : public testing::TestWithParam<DType> {};

TEST_P(PlainDtype, MatchesReferenceOnOddShapes) {
  ThreadTeam team(3);
  const int64_t rows[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 33, 63, 519};
  for (const Shape shape : {Shape{1, 1}, {7, 3}, {16, 32}, {17, 33}, {100, 97}, {64, 256},
                            {130, 640}}) {
    ASSERT_NO_FATAL_FAILURE(
        expect_gemms(make_weight(GetParam(), shape.n, shape.k, 7), rows, team));
  }
}
INSTANTIATE_TEST_SUITE_P(All, PlainDtype, testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(dtype_info(info.param).name); });

// The bits of a row do not depend on the batch around it, nor on the number of threads.
TEST(PackedLinear, IsBatchInvariant) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::q8_0, DType::q4_0, DType::q4_1,
                            DType::q4_k, DType::q5_k, DType::q6_k, DType::iq4_nl, DType::iq4_xs}) {
    const Weight w = make_weight(dtype, 150, 768, 9);
    for (const CpuTier tier : tiers()) {
      for (const ComputeMode mode : {ComputeMode::f32, ComputeMode::bf16}) {
        ThreadTeam team(1), wide_team(5);
        const PackedLinear linear = packed(w, mode, tier, team);
        const Activations x(530, w.cols, 2);
        std::vector<float> all(x.rows * w.rows);
        linear.forward(x.input(DType::f32), {.data = all.data(), .row_stride = w.rows}, wide_team);
        for (const int64_t count : {1, 2, 3, 5, 6, 7, 8, 9, 16, 17, 37}) {
          const int64_t first = 530 - count;
          LinearInput part = x.input(DType::f32);
          part.data = x.f32.data() + first * x.stride;
          part.rows = count;
          std::vector<float> some(count * w.rows);
          linear.forward(part, {.data = some.data(), .row_stride = w.rows}, team);
          ASSERT_EQ(0, std::memcmp(some.data(), &all[first * w.rows], some.size() * 4))
              << dtype_info(dtype).name << " " << cpu_tier_name(tier) << " rows " << count;
        }
      }
    }
  }
}

TEST(PackedLinear, FindsTheBestColumnOfEveryRow) {
  for (const int64_t columns : {16, 77, 1000}) {
    Weight w = make_weight(DType::f32, columns, 64, 21);
    for (const int64_t copy : {columns - 1, columns / 2}) {
      std::memcpy(&w.bytes[copy * 64 * 4], &w.bytes[3 * 64 * 4], 64 * 4);
    }
    for (const CpuTier tier : tiers()) {
      ThreadTeam team(3);
      const PackedLinear linear = packed(w, ComputeMode::f32, tier, team);
      std::vector<float> x(600 * 64);
      std::mt19937 rng(5);
      for (float& v : x) v = std::normal_distribution<float>()(rng);
      for (int i = 0; i < 64; ++i) {
        x[7 * 64 + i] = reinterpret_cast<const float*>(w.bytes.data())[3 * 64 + i];  // best: row 3
        x[8 * 64 + i] = kNan;
      }
      std::vector<float> y(600 * columns);
      std::vector<RowBest> best(600);
      linear.forward({.data = x.data(), .rows = 600, .row_stride = 64},
                     {.data = y.data(), .row_stride = columns, .best = best.data()}, team);
      EXPECT_EQ(best[7].column, 3);
      EXPECT_EQ(best[8].column, 0);
      for (int64_t r = 0; r < 600; ++r) {
        if (r == 8) continue;
        const auto row = y.begin() + r * columns;
        const auto top = std::max_element(row, row + columns);
        ASSERT_EQ(best[r].column, top - row) << cpu_tier_name(tier) << " row " << r;
        ASSERT_EQ(best[r].value, *top);
      }
    }
  }
}

double gated(GluActivation glu, double gate, double up) {
  switch (glu) {
    case GluActivation::silu: return gate / (1 + std::exp(-gate)) * up;
    case GluActivation::gelu_tanh:
      return 0.5 * gate *
             (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
    case GluActivation::gelu: return 0.5 * gate * std::erfc(-gate / std::sqrt(2.0)) * up;
    case GluActivation::swiglu_oai: {
      gate = std::min(gate, 7.0);
      up = std::clamp(up, -7.0, 7.0);
      return (up + 1) * gate / (1 + std::exp(-1.702 * gate));
    }
    case GluActivation::none: break;
  }
  return gate;
}

TEST(PackedLinear, FusesGatedActivationsWithBias) {
  ThreadTeam team(2);
  const int64_t ffn = 41, k = 96;
  const Weight w = make_weight(DType::f32, 2 * ffn, k, 4);  // gate and up rows alternate
  std::vector<float> bias(2 * ffn);
  for (int64_t i = 0; i < 2 * ffn; ++i) bias[i] = static_cast<float>(i % 7) * 2.5f - 7;
  LinearPart gate, up;
  gate.weight = w.view();
  gate.bias = {.data = bias.data(), .dtype = DType::f32, .rank = 1, .shape = {2 * ffn}};
  gate.row_step = 2;
  up = gate;
  up.first_row = 1;
  const LinearPart parts[] = {gate, up};
  for (const CpuTier tier : tiers()) {
    for (const auto glu :
         {GluActivation::silu, GluActivation::gelu_tanh, GluActivation::gelu, GluActivation::swiglu_oai}) {
      auto linear = PackedLinear::pack(parts, {.glu = glu, .tier = tier}, team);
      ASSERT_TRUE(linear.ok()) << linear.status().message();
      ASSERT_EQ(linear->out_features(), ffn);
      for (const int64_t rows : {1, 9}) {
        const Activations x(rows, k, 6);
        std::vector<float> y(rows * ffn, kNan);
        std::vector<uint16_t> y16(rows * ffn + 1, 0x7fc0);
        linear->forward(x.input(DType::f32), {.data = y.data(), .row_stride = ffn}, team);
        linear->forward(x.input(DType::f32),
                        {.data = y16.data(), .dtype = DType::bf16, .row_stride = ffn}, team);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t n = 0; n < ffn; ++n) {
            const double g = reference_dot(x, DType::f32, r, w, 2 * n).sum + bias[2 * n];
            const double u = reference_dot(x, DType::f32, r, w, 2 * n + 1).sum + bias[2 * n + 1];
            const double want = gated(glu, g, u);
            ASSERT_NEAR(y[r * ffn + n], want, 2e-5 * (1 + std::abs(want)));
            ASSERT_EQ(y16[r * ffn + n], f32_to_bf16(y[r * ffn + n]));
          }
        }
        ASSERT_EQ(y16[rows * ffn], 0x7fc0);
      }
    }
  }
}

TEST(PackedLinear, StacksPartsAndAccumulates) {
  ThreadTeam team(2);
  const Weight a = make_weight(DType::bf16, 20, 64, 1), b = make_weight(DType::bf16, 9, 64, 2);
  LinearPart parts[2];
  parts[0].weight = a.view();
  parts[1].weight = b.view();
  const uint16_t bias[9] = {0x3f80, 0, 0, 0, 0, 0, 0, 0, 0xc000};  // 1, 0, ..., -2 in bf16
  parts[1].bias = {.data = bias, .dtype = DType::bf16, .rank = 1, .shape = {9}};
  for (const CpuTier tier : tiers()) {
    auto linear = PackedLinear::pack(parts, {.tier = tier}, team);
    ASSERT_TRUE(linear.ok());
    const Activations x(3, 64, 8);
    std::vector<float> y(3 * 29, 10.0f);
    linear->forward(x.input(DType::f32), {.data = y.data(), .row_stride = 29, .accumulate = true},
                    team);
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t n = 0; n < 29; ++n) {
        const Dot dot = n < 20 ? reference_dot(x, DType::f32, r, a, n)
                               : reference_dot(x, DType::f32, r, b, n - 20);
        const double extra = n == 20 ? 1 : n == 28 ? -2 : 0;
        ASSERT_NEAR(y[r * 29 + n], 10 + extra + dot.sum, 1e-5);
      }
    }
    std::vector<float> row(64);
    linear->weight_row(21, row.data());
    EXPECT_EQ(0, std::memcmp(row.data(), &b.values[64], 64 * sizeof(float)));
  }
}

TEST(PackedLinear, ReadsUnalignedTensors) {
  ThreadTeam team(1);
  const Weight w = make_weight(DType::f32, 18, 40, 3);
  std::vector<unsigned char> shifted(w.bytes.size() + 1);
  std::memcpy(shifted.data() + 1, w.bytes.data(), w.bytes.size());
  LinearPart part;
  part.weight = w.view();
  part.weight.data = shifted.data() + 1;
  auto linear = PackedLinear::pack({&part, 1}, {}, team);
  ASSERT_TRUE(linear.ok());
  const Activations x(2, 40, 1);
  expect_gemm(*linear, w, {x, DType::f32}, reference_gemm(w, x, DType::f32), team);
}

TEST(PackedLinear, RefusesWeightsThatDoNotFit) {
  ThreadTeam team(1);
  const Weight w = make_weight(DType::f32, 8, 32, 3), other = make_weight(DType::f32, 8, 16, 3);
  const auto code = [&](std::vector<LinearPart> parts, LinearOptions options = {}) {
    return PackedLinear::pack(parts, options, team).status().code();
  };
  LinearPart good, narrow, fp8, outside, block, bias;
  good.weight = outside.weight = bias.weight = w.view();
  narrow.weight = other.view();
  fp8.weight = w.view();
  fp8.weight.dtype = DType::fp8_e4m3;
  outside.rows = 9;
  block.weight = w.view();
  block.weight.dtype = DType::q4_k;
  bias.bias = {.data = w.bytes.data(), .dtype = DType::f32, .rank = 1, .shape = {7}};
  EXPECT_EQ(code({}), StatusCode::invalid_argument);
  EXPECT_EQ(code({good, narrow}), StatusCode::invalid_argument);
  EXPECT_EQ(code({fp8}), StatusCode::unsupported);
  EXPECT_EQ(code({outside}), StatusCode::invalid_argument);
  EXPECT_EQ(code({block}), StatusCode::invalid_argument);
  EXPECT_EQ(code({bias}), StatusCode::invalid_argument);
  EXPECT_EQ(code({good}, {.glu = GluActivation::silu}), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace warpweave
