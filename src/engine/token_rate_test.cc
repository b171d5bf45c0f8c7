#include "engine/token_rate.h"

#include <gtest/gtest.h>

namespace warpweave {
namespace {

TEST(TokenRate, IsAliveFromTheFirstSecondAndExactUnderSteadyLoad) {
  TokenRate rate;
  EXPECT_EQ(rate.per_second(100), 0);
  rate.add(100.2, 50);
  EXPECT_EQ(rate.per_second(100.3), 50);  // less than a second of work counts as one
  for (int i = 1; i < 300; ++i) rate.add(100.2 + i * 0.1, 50);
  EXPECT_NEAR(rate.per_second(130.2), 500, 50);
}

TEST(TokenRate, DecaysToNothingWhenTokensEnd) {
  TokenRate rate;
  for (int i = 0; i < 100; ++i) rate.add(1000 + i * 0.1, 10);
  double last = rate.per_second(1010);
  EXPECT_NEAR(last, 100, 10);
  for (int second = 1011; second < 1020; ++second) {
    EXPECT_LT(rate.per_second(second), last);
    last = rate.per_second(second);
  }
  EXPECT_EQ(rate.per_second(1020), 0);
  rate.add(5000, 8);  // a new burst is not thinned by the idle time before it
  EXPECT_EQ(rate.per_second(5001), 8);
}

}  // namespace
}  // namespace warpweave
