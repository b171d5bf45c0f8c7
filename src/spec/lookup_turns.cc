#include "spec/lookup_turns.h"

#include <algorithm>

namespace warpweave {

void LookupTurns::Way::add(double us) {
  us_per_token = known ? (us_per_token + us) / 2 : us;
  known = true;
}

void LookupTurns::measured(int tokens, double step_us, double plain_us) {
  tokens_ += tokens;
  us_ += step_us;
  if (++steps_ < kTurnSteps) return;
  (alone_ ? looking_ : drafting_).add(us_ / std::max(tokens_, 1));
  steps_ = tokens_ = 0;
  us_ = 0;
  const bool other_known = alone_ ? drafting_.known : looking_.known;
  if (!other_known || ++turns_ > kBetweenTrials) {
    alone_ = !alone_;
    turns_ = 0;
    return;
  }
  alone_ = looking_.us_per_token * kLeastGain < std::min(drafting_.us_per_token, plain_us);
}

}  // namespace warpweave
