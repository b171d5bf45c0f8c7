#include "attention/latent_forms.h"

#include <gtest/gtest.h>

namespace warpweave {
namespace {

std::vector<LatentFormPoint> grid() {
  return {{.shape = {}, .new_tokens = 64, .prefix = 0, .absorbed_us = 10, .expanded_us = 20},
          {.shape = {}, .new_tokens = 64, .prefix = 4096, .absorbed_us = 40, .expanded_us = 160},
          {.shape = {}, .new_tokens = 1024, .prefix = 0, .absorbed_us = 160, .expanded_us = 80},
          {.shape = {}, .new_tokens = 1024, .prefix = 4096, .absorbed_us = 640, .expanded_us = 320}};
}

TEST(LatentFormTimes, GivesWhatWasMeasured) {
  const auto times = LatentFormTimes::of(grid());
  ASSERT_TRUE(times.has_value());
  for (const LatentFormPoint& point : grid()) {
    const auto got = times->estimate(point.new_tokens, point.prefix);
    EXPECT_NEAR(got.absorbed_us, point.absorbed_us, 1e-6);
    EXPECT_NEAR(got.expanded_us, point.expanded_us, 1e-6);
  }
}

TEST(LatentFormTimes, LiesBetweenWhatWasMeasured) {
  const auto times = LatentFormTimes::of(grid());
  ASSERT_TRUE(times.has_value());
  const auto middle = times->estimate(256, 0);
  EXPECT_GT(middle.absorbed_us, 10);
  EXPECT_LT(middle.absorbed_us, 160);
  EXPECT_NEAR(middle.absorbed_us, middle.expanded_us, 3) << "where the two lines of logarithms cross";
  EXPECT_NEAR(times->estimate(64, 63).absorbed_us, 20, 1) << "half of the way by logarithms";
}

TEST(LatentFormTimes, GrowsBeyondTheGridAsPairsDo) {
  const auto times = LatentFormTimes::of(grid());
  ASSERT_TRUE(times.has_value());
  EXPECT_NEAR(times->estimate(2048, 0).expanded_us, 4 * 80, 1e-6);
  EXPECT_NEAR(times->estimate(16, 0).absorbed_us, 10, 1e-6) << "fewer take no less";
}

TEST(LatentFormTimes, NeedsAWholeGrid) {
  std::vector<LatentFormPoint> points = grid();
  points.pop_back();
  EXPECT_FALSE(LatentFormTimes::of(points).has_value());
  EXPECT_FALSE(LatentFormTimes::of({}).has_value());
}

// The grid of a file of some MB would take 6 GB.
TEST(LatentFormTimes, MakesNoGridOfADiagonal) {
  std::vector<LatentFormPoint> points;
  for (int i = 1; i <= 20000; ++i)
    points.push_back({.shape = {}, .new_tokens = i, .prefix = i, .absorbed_us = 1, .expanded_us = 1});
  EXPECT_FALSE(LatentFormTimes::of(points).has_value());
}

}  // namespace
}  // namespace warpweave
