// LoraRows against sums in double, for batches with rows of several adapters and of none.
#include "ops/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ops/elementwise.h"

namespace warpweave {
namespace {

constexpr int64_t kIn = 40, kColumns = 56;

struct Matrix {
  int64_t rows, cols;
  std::vector<float> values;
  TensorView view() const { return {.data = values.data(), .dtype = DType::f32, .rank = 2, .shape = {rows, cols}}; }
};

Matrix random_matrix(int64_t rows, int64_t cols, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, 0.3f);
  Matrix out{rows, cols, std::vector<float>(rows * cols)};
  for (float& value : out.values) value = normal(rng);
  return out;
}

struct PartSpec {
  int64_t rank, first_column, columns;
  float scale;
};

// An adapter of one layer whose qkv GEMM has these parts, and its matrices.
struct TestAdapter {
  LoraAdapter adapter;
  std::vector<PartSpec> parts;
  std::vector<Matrix> a, b;

  TestAdapter(uint64_t id, std::vector<PartSpec> specs, ThreadTeam& team) : parts(std::move(specs)) {
    adapter.id = id;
    LoraUpdate& update = adapter.layers.emplace_back()[0];
    std::vector<LinearPart> shrink;
    int64_t first_rank = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      a.push_back(random_matrix(parts[p].rank, kIn, static_cast<unsigned>(100 * id + p)));
      b.push_back(random_matrix(parts[p].columns, parts[p].rank, static_cast<unsigned>(100 * id + 50 + p)));
    }
    for (size_t p = 0; p < parts.size(); ++p) {
      shrink.push_back({.weight = a[p].view(), .bias = {}});
      const LinearPart expand = {.weight = b[p].view(), .bias = {}};
      update.parts.push_back({.expand = PackedLinear::pack(std::span(&expand, 1), {}, team).value(),
                              .first_rank = first_rank,
                              .first_column = parts[p].first_column,
                              .scale = parts[p].scale});
      first_rank += parts[p].rank;
      update.columns += parts[p].columns;
    }
    if (!parts.empty()) update.shrink = PackedLinear::pack(shrink, {}, team).value();
  }

  // What it adds to one row.
  std::vector<double> reference(const float* x) const {
    std::vector<double> out(kColumns);
    for (size_t p = 0; p < parts.size(); ++p) {
      for (int64_t r = 0; r < parts[p].rank; ++r) {
        double middle = 0;
        for (int64_t k = 0; k < kIn; ++k) middle += double{a[p].values[r * kIn + k]} * x[k];
        for (int64_t c = 0; c < parts[p].columns; ++c) {
          out[parts[p].first_column + c] += parts[p].scale * middle * b[p].values[c * parts[p].rank + r];
        }
      }
    }
    return out;
  }
};

struct LoraRowsTest : testing::Test {
  ThreadTeam team{2};
  TestAdapter whole{1, {{4, 0, 32, 2.0f}, {8, 32, 24, 0.5f}}, team};
  TestAdapter middle{2, {{16, 20, 17, 1.5f}}, team};   // leaves columns as they are
  TestAdapter elsewhere{3, {}, team};                  // has no part in this GEMM
  LoraRows rows;

  void expect_rows(const LinearInput& input, const float* x, std::span<const TestAdapter* const> by_row) {
    const LinearAddend addend = rows.addend(0, LoraSite::qkv, input, kColumns, team);
    ASSERT_NE(addend.values, nullptr);
    for (size_t r = 0; r < by_row.size(); ++r) {
      if (by_row[r] == nullptr || by_row[r]->parts.empty()) {
        EXPECT_EQ(addend.rows[r], -1) << r;
        continue;
      }
      ASSERT_GE(addend.rows[r], 0) << r;
      const std::vector<double> expected = by_row[r]->reference(x + r * kIn);
      for (int64_t c = 0; c < kColumns; ++c) {
        EXPECT_NEAR(addend.values[addend.rows[r] * addend.row_stride + c], expected[c], 1e-4) << r << ", " << c;
      }
    }
  }
};

TEST_F(LoraRowsTest, MixesRowsOfSeveralAdapters) {
  const LoraAdapter* const requests[] = {&whole.adapter, nullptr, &middle.adapter, &elsewhere.adapter, &whole.adapter};
  const int32_t q_indptr[] = {0, 2, 5, 6, 7, 10};
  const TestAdapter* const by_row[] = {&whole,  &whole,     nullptr, nullptr, nullptr,
                                       &middle, &elsewhere, &whole,  &whole,  &whole};
  const Matrix x = random_matrix(10, kIn, 7);
  rows.start(requests, q_indptr);
  expect_rows({.data = x.values.data(), .rows = 10, .row_stride = kIn}, x.values.data(), by_row);

  // A shorter batch after a longer one, and rows in 16 bits.
  std::vector<uint16_t> halves(3 * kIn);
  std::vector<float> rounded(3 * kIn);
  f32_to_bf16_row(x.values.data(), 3 * kIn, halves.data());
  bf16_to_f32_row(halves.data(), 3 * kIn, rounded.data());
  const int32_t one_each[] = {0, 1, 2, 3};
  const TestAdapter* const three[] = {&whole, nullptr, &middle};
  rows.start(std::span(requests).first(3), one_each);
  expect_rows({.data = halves.data(), .dtype = DType::bf16, .rows = 3, .row_stride = kIn}, rounded.data(), three);
}

TEST_F(LoraRowsTest, KeepsRows) {
  const LoraAdapter* const requests[] = {&whole.adapter, nullptr, &middle.adapter};
  const int32_t q_indptr[] = {0, 3, 5, 8}, kept[] = {2, 4, 7};
  const TestAdapter* const by_row[] = {&whole, nullptr, &middle};
  const Matrix x = random_matrix(3, kIn, 8);
  rows.start(requests, q_indptr);
  rows.keep(kept);
  expect_rows({.data = x.values.data(), .rows = 3, .row_stride = kIn}, x.values.data(), by_row);
}

TEST_F(LoraRowsTest, WithoutAdaptersNothingJoins) {
  const LoraAdapter* const none[] = {nullptr, nullptr};
  const LoraAdapter* const other[] = {&elsewhere.adapter, nullptr};
  const int32_t q_indptr[] = {0, 1, 2};
  const Matrix x = random_matrix(2, kIn, 9);
  const LinearInput input = {.data = x.values.data(), .rows = 2, .row_stride = kIn};
  rows.start(none, q_indptr);
  EXPECT_EQ(rows.addend(0, LoraSite::qkv, input, kColumns, team).values, nullptr);
  rows.start({}, q_indptr);
  EXPECT_EQ(rows.addend(0, LoraSite::qkv, input, kColumns, team).values, nullptr);
  rows.start(other, q_indptr);
  EXPECT_EQ(rows.addend(0, LoraSite::qkv, input, kColumns, team).values, nullptr);
}

// An addend joins before the activation, in the rows that have one, in every tier and at odd widths.
TEST_F(LoraRowsTest, AddendsJoinGemms) {
  constexpr int64_t kRows = 11, kWidth = 37;
  const Matrix gate = random_matrix(kWidth, kIn, 1), up = random_matrix(kWidth, kIn, 2),
               x = random_matrix(kRows, kIn, 3);
  const Matrix values = random_matrix(4, 2 * kWidth, 4);
  const int32_t places[kRows] = {-1, 2, 0, -1, 3, 1, -1, 2, 2, 0, -1};
  const LinearPart parts[] = {{.weight = gate.view(), .bias = {}}, {.weight = up.view(), .bias = {}}};
  const LinearAddend addend = {.values = values.values.data(), .row_stride = 2 * kWidth, .rows = places};
  for (int tier = 0; tier <= static_cast<int>(cpu_info().tier); ++tier) {
    for (const GluActivation glu : {GluActivation::none, GluActivation::silu}) {
      const bool gated = glu == GluActivation::silu;
      const auto linear = PackedLinear::pack(parts, {.glu = glu, .tier = static_cast<CpuTier>(tier)}, team);
      ASSERT_TRUE(linear.ok());
      const int64_t columns = linear->out_features();
      std::vector<float> y(kRows * columns, 5.0f);
      linear->forward({.data = x.values.data(), .rows = kRows, .row_stride = kIn},
                      {.data = y.data(), .row_stride = columns, .accumulate = !gated, .addend = addend}, team);
      for (int64_t r = 0; r < kRows; ++r) {
        std::vector<double> sums(2 * kWidth);
        for (int64_t c = 0; c < 2 * kWidth; ++c) {
          const float* const row = c < kWidth ? &gate.values[c * kIn] : &up.values[(c - kWidth) * kIn];
          for (int64_t k = 0; k < kIn; ++k) sums[c] += double{row[k]} * x.values[r * kIn + k];
          if (places[r] >= 0) sums[c] += values.values[places[r] * 2 * kWidth + c];
        }
        for (int64_t c = 0; c < columns; ++c) {
          const double expected = gated ? sums[c] / (1 + std::exp(-sums[c])) * sums[c + kWidth] : 5 + sums[c];
          EXPECT_NEAR(y[r * columns + c], expected, 1e-4) << tier << ", " << r << ", " << c;
        }
      }
    }
  }
}

}  // namespace
}  // namespace warpweave
