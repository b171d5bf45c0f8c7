// By turns with a draft model and without.
#include "spec/lookup_turns.h"

#include <gtest/gtest.h>

namespace warpweave {
namespace {

// The share of steps in which nothing is drafted, of machines on which a token takes that long.
double share_alone(double drafting_us, double looking_us, double plain_us) {
  LookupTurns turns;
  constexpr int kSteps = 100 * LookupTurns::kTurnSteps;
  int alone = 0;
  for (int step = 0; step < kSteps; ++step) {
    alone += turns.alone();
    turns.measured(2, 2 * (turns.alone() ? looking_us : drafting_us), plain_us);
  }
  return static_cast<double>(alone) / kSteps;
}

TEST(LookupTurns, GoToWhatTakesLessTime) {
  EXPECT_GT(share_alone(170, 140, 230), 0.9);
  EXPECT_LT(share_alone(140, 170, 230), 0.1);
}

TEST(LookupTurns, LeaveAloneWhereNothingPays) {
  EXPECT_LT(share_alone(260, 250, 230), 0.1) << "no guesses at all are faster";
  EXPECT_LT(share_alone(230, 228, 230), 0.1) << "a gain as small as that is none";
}

TEST(LookupTurns, ChangeTheirMind) {
  LookupTurns turns;
  const auto run = [&turns](double looking_us) {
    for (int step = 0; step < 60 * LookupTurns::kTurnSteps; ++step) {
      turns.measured(1, turns.alone() ? looking_us : 170, 230);
    }
    int alone = 0;
    for (int step = 0; step < 10 * LookupTurns::kTurnSteps; ++step) {
      alone += turns.alone();
      turns.measured(1, turns.alone() ? looking_us : 170, 230);
    }
    return alone;
  };
  EXPECT_GT(run(140), 8 * LookupTurns::kTurnSteps);
  EXPECT_LT(run(220), 2 * LookupTurns::kTurnSteps);
}

}  // namespace
}  // namespace warpweave
