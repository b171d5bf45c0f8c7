#include "attention/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace warpweave {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int kRows = 3, kHeads = 2, kDim = 5;
constexpr MergeShape kShape = {kRows, kHeads, kDim};

struct State {
  std::vector<float> out = std::vector<float>(kRows * kHeads * kDim);
  std::vector<float> lse = std::vector<float>(kRows * kHeads);
  PartialAttention part() const { return {out.data(), kHeads * kDim, lse.data()}; }
  MergedAttention into() { return {out.data(), kHeads * kDim, lse.data()}; }
};

// Scores and values of every row and head; attention over a range of them, by the definition.
struct Whole {
  static constexpr int kKv = 12;
  std::vector<double> scores, values;
  explicit Whole(double spread) {
    std::mt19937 random(1);
    std::normal_distribution<double> normal;
    for (int i = 0; i < kRows * kHeads * kKv; ++i) scores.push_back(spread * normal(random));
    for (int i = 0; i < kRows * kHeads * kKv * kDim; ++i) values.push_back(normal(random));
  }
  State attend(int begin, int end) const {
    State state;
    for (int at = 0; at < kRows * kHeads; ++at) {
      double top = -kInf, sum = 0, out[kDim] = {};
      for (int kv = begin; kv < end; ++kv) top = std::max(top, scores[at * kKv + kv]);
      for (int kv = begin; kv < end; ++kv) {
        const double weight = std::exp(scores[at * kKv + kv] - top);
        sum += weight;
        for (int i = 0; i < kDim; ++i) out[i] += weight * values[(at * kKv + kv) * kDim + i];
      }
      for (int i = 0; i < kDim; ++i) {
        state.out[at * kDim + i] = begin == end ? 0.0f : static_cast<float>(out[i] / sum);
      }
      state.lse[at] = begin == end ? -kInf : static_cast<float>(top + std::log(sum));
    }
    return state;
  }
};

void expect_equal(const State& got, const State& want) {
  for (size_t i = 0; i < want.out.size(); ++i) EXPECT_NEAR(got.out[i], want.out[i], 2e-6) << i;
  for (size_t i = 0; i < want.lse.size(); ++i) {
    if (std::isinf(want.lse[i])) {
      EXPECT_EQ(got.lse[i], want.lse[i]);
    } else {
      EXPECT_NEAR(got.lse[i], want.lse[i], 1e-5 + 1e-6 * std::fabs(want.lse[i]));
    }
  }
}

TEST(MergeAttention, PartsGiveTheWhole) {
  for (const double spread : {1.0, 200.0}) {
    const Whole whole(spread);
    const State want = whole.attend(0, 12);
    for (const std::vector<int>& cuts : {std::vector<int>{0, 12}, {0, 5, 12}, {0, 1, 2, 11, 12}, {0, 6, 6, 12}}) {
      std::vector<State> states;
      std::vector<PartialAttention> parts;
      for (size_t i = 0; i + 1 < cuts.size(); ++i) states.push_back(whole.attend(cuts[i], cuts[i + 1]));
      for (const State& state : states) parts.push_back(state.part());
      State merged;
      merge_attention(kShape, parts, merged.into());
      expect_equal(merged, want);
    }
  }
}

TEST(MergeAttention, MergesIntoOneOfItsParts) {
  const Whole whole(3);
  for (const int own : {0, 1, 2}) {
    std::vector<State> states = {whole.attend(0, 4), whole.attend(4, 5), whole.attend(5, 12)};
    const PartialAttention parts[] = {states[0].part(), states[1].part(), states[2].part()};
    merge_attention(kShape, parts, states[own].into());
    expect_equal(states[own], whole.attend(0, 12));
  }
}

TEST(MergeAttention, EmptyPartsCountForNothing) {
  const Whole whole(1);
  const State want = whole.attend(0, 12);
  State empty = whole.attend(3, 3);
  empty.out.assign(empty.out.size(), kNaN);  // not read
  State merged;
  const PartialAttention parts[] = {empty.part(), want.part(), empty.part()};
  merge_attention(kShape, parts, merged.into());
  expect_equal(merged, want);
  merge_attention(kShape, {parts, 1}, merged.into());
  expect_equal(merged, whole.attend(3, 3));
  State own = empty;
  const PartialAttention own_first[] = {own.part(), want.part()};
  merge_attention(kShape, own_first, own.into());
  expect_equal(own, want);
}

TEST(MergeAttention, TwoPartsInEitherOrderGiveTheSameBits) {
  const Whole whole(2);
  const State a = whole.attend(0, 7), b = whole.attend(7, 12);
  const PartialAttention ab[] = {a.part(), b.part()}, ba[] = {b.part(), a.part()};
  State first, second;
  merge_attention(kShape, ab, first.into());
  merge_attention(kShape, ba, second.into());
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(first.lse, second.lse);
}

TEST(MergeAttention, KeepsToItsStridesAndMayDropTheLse) {
  const Whole whole(1);
  const State a = whole.attend(0, 7), b = whole.attend(7, 12), want = whole.attend(0, 12);
  constexpr int kStride = kHeads * kDim + 3;
  std::vector<float> out(kRows * kStride, kNaN);
  const PartialAttention parts[] = {a.part(), b.part()};
  merge_attention(kShape, parts, {out.data(), kStride, nullptr});
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < kStride; ++i) {
      if (i < kHeads * kDim) {
        EXPECT_NEAR(out[row * kStride + i], want.out[row * kHeads * kDim + i], 2e-6);
      } else {
        EXPECT_TRUE(std::isnan(out[row * kStride + i]));
      }
    }
  }
}

}  // namespace
}  // namespace warpweave
