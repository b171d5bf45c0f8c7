// Rotation at three positions a row (M-RoPE), against f64 and against one position.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/resident_memory.h"
#include "ops/rope.h"

namespace warpweave {
namespace {

using Axes = std::vector<uint8_t>;

TEST(RopeAxes, SectionsFollowEachOther) {
  EXPECT_EQ(rope_axes(std::vector<int>{2, 3, 3}, false), (Axes{0, 0, 1, 1, 1, 2, 2, 2}));
  EXPECT_EQ(rope_axes(std::vector<int>{4, 0, 0}, false), (Axes{0, 0, 0, 0}));
}

TEST(RopeAxes, InterleavedSectionsTakeEveryThird) {
  EXPECT_EQ(rope_axes(std::vector<int>{4, 2, 2}, true), (Axes{0, 1, 2, 0, 1, 2, 0, 0}));
  // Of Qwen3.5: 11, 11 and 10 of 32.
  const Axes axes = rope_axes(std::vector<int>{11, 11, 10}, true);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(axes[i], i % 3) << i;
  EXPECT_EQ(rope_axes(std::vector<int>{5, 1, 1}, true), (Axes{0, 1, 2, 0, 0, 0, 0}));
}

constexpr int kRows = 9, kHeads = 3, kDim = 20, kHalf = 8;  // 16 of 20 dimensions are rotated

std::vector<double> frequencies() {
  std::vector<double> out;
  for (int i = 0; i < kHalf; ++i) out.push_back(std::pow(100.0, -i / static_cast<double>(kHalf)));
  return out;
}

std::vector<float> rotated(std::vector<float> x, const RopeTable& table, const std::vector<int32_t>& positions) {
  ThreadTeam team(1);
  QkvRowsCall call;
  call.rows = kRows;
  call.num_q_heads = kHeads;
  call.head_dim = call.v_head_dim = kDim;
  call.q = call.k = x.data();
  call.q_stride = kHeads * kDim;
  call.rope = &table;
  call.positions = positions.data();
  norm_rope_write_kv(call, team);
  return x;
}

class ThreePositions : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (float& x : rows_) x = normal(random);
    for (int r = 0; r < kRows; ++r) {
      numbers_.push_back(r);
      for (int axis = 0; axis < 3; ++axis) places_[axis * kRows + r] = static_cast<int32_t>(random() % 64);
    }
  }

  std::vector<float> at_places(const std::vector<int32_t>& places, const Axes& axes) const {
    RopeTable angles;
    gather_rope_rows(table_, axes, places.data(), kRows, angles);
    return rotated(rows_, angles, numbers_);
  }

  const bool pairs_ = GetParam();  // neighbours are rotated together
  const RopeTable table_ = RopeTable::make(frequencies(), 64, pairs_, 1.5);
  std::vector<float> rows_ = std::vector<float>(kRows * kHeads * kDim);
  std::vector<int32_t> numbers_, places_ = std::vector<int32_t>(3 * kRows);
};

// Long contexts are allowed by default and seldom used.
TEST(RopeTable, GrowsWithThePositionsThatCome) {
  constexpr int64_t kMost = 10'000'000;
  ThreadTeam team(2);
  const int64_t before_bytes = resident_memory().anonymous_bytes;
  RopeTable table = RopeTable::make_empty(frequencies(), kMost, false, 1.5);
  EXPECT_EQ(table.positions, 0);
  table.reach(0, team);
  const float* const cos = table.cos.data();
  for (const int64_t last : {5, 3, 700}) {
    table.reach(last, team);
    EXPECT_GT(table.positions, last);
  }
  EXPECT_LT(resident_memory().anonymous_bytes - before_bytes, kMost);
  const RopeTable whole = RopeTable::make(frequencies(), table.positions, false, 1.5);
  EXPECT_EQ(table.cos, whole.cos);
  EXPECT_EQ(table.sin, whole.sin);
  EXPECT_EQ(table.cos.data(), cos);

  RopeTable small = RopeTable::make_empty(frequencies(), 7, false, 1.5);
  small.reach(2, team);
  EXPECT_EQ(small.positions, 7);
}

TEST_P(ThreePositions, EqualOnesGiveTheBitsOfOne) {
  const std::vector<int32_t> one(places_.begin(), places_.begin() + kRows);
  std::vector<int32_t> three;
  for (int axis = 0; axis < 3; ++axis) three.insert(three.end(), one.begin(), one.end());
  EXPECT_EQ(at_places(three, rope_axes(std::vector<int>{2, 3, 3}, false)), rotated(rows_, table_, one));
  EXPECT_EQ(at_places(three, rope_axes(std::vector<int>{4, 2, 2}, true)), rotated(rows_, table_, one));
}

TEST_P(ThreePositions, EachFrequencyTurnsByItsOwn) {
  for (const Axes& axes : {rope_axes(std::vector<int>{2, 3, 3}, false), rope_axes(std::vector<int>{4, 2, 2}, true)}) {
    const std::vector<float> got = at_places(places_, axes);
    for (int r = 0; r < kRows; ++r) {
      for (int h = 0; h < kHeads; ++h) {
        const int64_t head = (r * kHeads + h) * kDim;
        for (int i = 0; i < kHalf; ++i) {
          const int first = pairs_ ? 2 * i : i, second = pairs_ ? 2 * i + 1 : i + kHalf;
          const double angle = places_[axes[i] * kRows + r] * frequencies()[i];
          const double a = rows_[head + first], b = rows_[head + second];
          EXPECT_NEAR(got[head + first], 1.5 * (a * std::cos(angle) - b * std::sin(angle)), 2e-6);
          EXPECT_NEAR(got[head + second], 1.5 * (b * std::cos(angle) + a * std::sin(angle)), 2e-6);
        }
        for (int i = 2 * kHalf; i < kDim; ++i) EXPECT_EQ(got[head + i], rows_[head + i]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Pairs, ThreePositions, testing::Values(false, true));

}  // namespace
}  // namespace warpweave
