// Lengths of guesses where each request of a step may have its own (length_planner.h).
//
// The rule.
// - Cost: a step of n requests takes plain(n) without guesses, and with them plain(n) + keep(n), what the draft model
//   spends on following the text, + pass(n) for each level of guesses + guess(n) for each guess that is checked. All
//   are running means of measured steps, n by powers of two.
// - Plan: the longest length is the one with most tokens a second; a request gets fewer guesses where another one of
// its
//   own would gain less than it costs. None, where that is not kLeastGain better than a step without.
// - Trials: a request for which nothing is planned tries one guess in each of kTrials steps, then it sleeps: it guesses
// no
//   more, and the draft model follows its text no longer. As many requests try in a step as cost half a step; where two
//   in a row fell asleep, the others do at once, and those that come sleep from the start, but one whenever kTrialShare
//   of the time since the last such would pay its trials. So what does not pay costs little, and is found when it pays
//   again.
// - Proof: where kProofSteps steps with planned guesses gave fewer tokens a second than plain(n) promises, nothing is
// planned
//   at this n for kDoubtSteps steps, whatever the means say.
// - One step in kEarlyRefreshSteps goes without guesses, to measure plain(n), later one in kRefreshSteps.
#pragma once

#include <array>
#include <span>

#include "spec/length_planner.h"

namespace warpweave {

class AdaptiveLength : public LengthPlanner {
 public:
  static constexpr int kTrials = 8;
  static constexpr double kTrialShare = 0.01;
  static constexpr int kEarlyRefreshSteps = 16, kRefreshSteps = 128;
  static constexpr int kProofSteps = 64, kDoubtSteps = 256;
  static constexpr double kLeastGain = 1.02;

  explicit AdaptiveLength(const AdaptiveOptions& options) : options_(options) {}

  LengthState begin(int running) override;
  void plan(std::span<LengthState* const> states, int requests, int most) override;
  void measured(const DraftedStep& step) override;

 private:
  struct Costs {
    RunningCost plain, keep, level, guess;  // in microseconds
    int since_plain = 0;
    // Of planned guesses: what came of the steps since the last judgement.
    bool planned = false;
    int proof_steps = 0, doubt_steps = 0;
    double proof_us = 0, proof_promised_us = 0;
    int slept = 0;                   // requests in a row that fell asleep
    int since_scout = 0;             // steps since a request came that was to try although those before slept
  };
  Costs& costs_of(int requests) { return costs_[cost_bucket(requests)]; }
  int own_length(const LengthState& state, int longest, double guess_price) const;
  int best_length(std::span<LengthState* const> states, int requests, int most, const Costs& costs) const;
  bool doubted(Costs& costs) const;
  void try_or_sleep(LengthState& state, int& tries, Costs& costs);

  const AdaptiveOptions options_;
  std::array<Costs, kCostBuckets> costs_;
};

}  // namespace warpweave
