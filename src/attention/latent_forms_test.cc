#include "attention/latent_forms.h"

#include <gtest/gtest.h>

namespace warpweave {
namespace {

// Crowds of 16 take four times as long, those of 1024 new tokens behind 4096 were not measured.
std::vector<LatentFormPoint> grid() {
  return {{.requests = 1, .new_tokens = 64, .prefix = 0, .absorbed_us = 10, .expanded_us = 20},
          {.requests = 1, .new_tokens = 64, .prefix = 1024, .absorbed_us = 20, .expanded_us = 60},
          {.requests = 1, .new_tokens = 64, .prefix = 4096, .absorbed_us = 40, .expanded_us = 160},
          {.requests = 1, .new_tokens = 1024, .prefix = 0, .absorbed_us = 160, .expanded_us = 80},
          {.requests = 1, .new_tokens = 1024, .prefix = 1024, .absorbed_us = 240, .expanded_us = 120},
          {.requests = 1, .new_tokens = 1024, .prefix = 4096, .absorbed_us = 640, .expanded_us = 320},
          {.requests = 16, .new_tokens = 64, .prefix = 0, .absorbed_us = 40, .expanded_us = 50},
          {.requests = 16, .new_tokens = 64, .prefix = 1024, .absorbed_us = 80, .expanded_us = 240},
          {.requests = 16, .new_tokens = 64, .prefix = 4096, .absorbed_us = 160, .expanded_us = 640},
          {.requests = 16, .new_tokens = 1024, .prefix = 0, .absorbed_us = 640, .expanded_us = 320},
          {.requests = 16, .new_tokens = 1024, .prefix = 1024, .absorbed_us = 960, .expanded_us = 480}};
}

LatentFormTimes times_of(const std::vector<LatentFormPoint>& points) {
  return LatentFormTimes::of(points).value_or(LatentFormTimes());
}

TEST(LatentFormTimes, GivesWhatWasMeasured) {
  const LatentFormTimes times = times_of(grid());
  ASSERT_FALSE(times.empty());
  for (const LatentFormPoint& point : grid()) {
    const auto got = times.estimate(point.requests, point.new_tokens, point.prefix);
    EXPECT_NEAR(got.absorbed_us, point.absorbed_us, 1e-6);
    EXPECT_NEAR(got.expanded_us, point.expanded_us, 1e-6);
  }
}

TEST(LatentFormTimes, LiesBetweenWhatWasMeasured) {
  const LatentFormTimes times = times_of(grid());
  ASSERT_FALSE(times.empty());
  EXPECT_NEAR(times.estimate(1, 256, 0).absorbed_us, 40, 1e-6) << "half of the way by logarithms";
  EXPECT_NEAR(times.estimate(1, 64, 2560).absorbed_us, 30, 1e-6) << "half of the way";
  EXPECT_NEAR(times.estimate(1, 64, 1).expanded_us, 60, 1e-6) << "the shortest prefix takes chunks as the next one does";
  EXPECT_NEAR(times.estimate(8.5, 64, 0).absorbed_us, 25, 1e-6) << "half of the way to the crowd";
}

TEST(LatentFormTimes, GrowsBeyondTheGridAsPairsDo) {
  const LatentFormTimes times = times_of(grid());
  ASSERT_FALSE(times.empty());
  EXPECT_NEAR(times.estimate(1, 2048, 0).expanded_us, 4 * 80, 1e-6);
  EXPECT_NEAR(times.estimate(1, 16, 0).absorbed_us, 10, 1e-6) << "fewer take no less";
  EXPECT_NEAR(times.estimate(64, 64, 0).absorbed_us, 4 * 40, 1e-6);
}

TEST(LatentFormTimes, TakesCrowdsThatWereNotMeasuredFromSmallerOnes) {
  EXPECT_NEAR(times_of(grid()).estimate(16, 1024, 4096).absorbed_us, 16 * 640, 1e-6);
}

TEST(LatentFormTimes, LiesBetweenThoseOfOtherHeads) {
  const LatentFormTimes times = times_of(grid());
  const auto middle = LatentFormTimes::between(times, times.scaled(3), {.absorbed = 0.5, .expanded = 1});
  EXPECT_NEAR(middle.estimate(1, 64, 1024).absorbed_us, 2 * 20, 1e-6);
  EXPECT_NEAR(middle.estimate(16, 1024, 0).expanded_us, 3 * 320, 1e-6);
}

TEST(LatentFormTimes, NeedsAWholeGridAndCrowds) {
  std::vector<LatentFormPoint> points = grid();
  points.erase(points.begin());
  EXPECT_FALSE(LatentFormTimes::of(points).has_value()) << "one request of 64 tokens is missing";
  points = grid();
  points.resize(6);
  EXPECT_FALSE(LatentFormTimes::of(points).has_value()) << "no crowds";
  EXPECT_FALSE(LatentFormTimes::of({}).has_value());
}

// The grid of a file of some MB would take 6 GB, of a diagonal or of crowds of every size.
TEST(LatentFormTimes, MakesNoGridThatPointsDoNotFill) {
  std::vector<LatentFormPoint> points;
  for (int i = 1; i <= 20000; ++i)
    points.push_back({.requests = 1 + i % 2, .new_tokens = i, .prefix = i, .absorbed_us = 1, .expanded_us = 1});
  EXPECT_FALSE(LatentFormTimes::of(points).has_value());
  points.clear();
  for (int i = 1; i <= 20000; ++i) {
    points.push_back({.requests = 1, .new_tokens = i, .prefix = 0, .absorbed_us = 1, .expanded_us = 1});
    points.push_back({.requests = i, .new_tokens = 1, .prefix = 0, .absorbed_us = 1, .expanded_us = 1});
  }
  EXPECT_FALSE(LatentFormTimes::of(points).has_value());
}

}  // namespace
}  // namespace warpweave
