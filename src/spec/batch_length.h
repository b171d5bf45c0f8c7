// Lengths of guesses where all requests of a step get as many, so that it is of a shape that there is a graph for, and
// where steps without guesses overlap (length_planner.h).
//
// Waiting for a step before the next is made, and showing it to the draft model, may cost more than guesses do. So
// costs are those of whole steps, from end to end as the host sees them:
// - step(n, k): a running mean of steps of n requests, by powers of two, with k guesses each. step(n, 0) is of steps
// that
//   overlap, while nobody is followed: kBurst steps in a row go without guesses to measure it, at first and then every
//   kRefreshSteps steps. The draft model catches up afterwards.
// - Plan: the k with most tokens a second. While step(n, k) is not known it is supposed to take the least that it can,
//   by the lengths on either side that are. So lengths that may gain are tried, the longest first, kTryouts steps each.
// - Where no k is kLeastGain better than none, all requests of the step fall asleep, at once where that would be so
// with the
//   usual share of right guesses, too, else after kTrials such steps. Those that come where guesses usually do not pay
//   sleep from the start, but one, a scout, whenever kTrialShare of the time since the last such would pay its kTrials
//   steps with guesses. What a scout finds counts for those that come later; those that sleep do not wake.
// - Proof: where kProofSteps steps with planned guesses gave fewer tokens a second than step(n, 0) promises, nothing is
//   planned at this n for kDoubtSteps steps, then twice as many, up to kMostDoubtSteps.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "spec/length_planner.h"

namespace warpweave {

class BatchLength : public LengthPlanner {
 public:
  static constexpr int kBurst = 8, kBurstLead = 2;   // the first ones do not overlap yet
  static constexpr int kRefreshSteps = 512;
  static constexpr int kTryouts = 4, kMostAttempts = 64;
  static constexpr int kTrials = 8;
  static constexpr double kTrialShare = 0.01;
  static constexpr int kProofSteps = 32, kDoubtSteps = 512, kMostDoubtSteps = 16384;
  static constexpr double kLeastGain = 1.03;

  explicit BatchLength(const AdaptiveOptions& options);

  LengthState begin(int running) override;
  bool may_guess() const override { return burst_left_ == 0; }
  bool follows() const override { return burst_left_ == 0; }
  void plan(std::span<LengthState* const> states, int requests, int most) override;
  void measured(const DraftedStep& step) override;
  void outcome(LengthState& state, int guesses, int accepted) override;

 private:
  struct StepCost {
    RunningCost us;
    int attempts = 0;                // steps planned while it was not known
    bool known() const { return us.count >= kTryouts; }
  };
  struct Costs {
    std::vector<StepCost> steps;     // by length
    int since_plain = 0;             // steps since steps[0] was measured
    double since_scout_us = 0;       // of steps that showed the draft model nothing, since a scout came
    // Of planned guesses: what came of the steps since the last judgement.
    int proof_steps = 0, doubt_left = 0, doubt_steps = kDoubtSteps;
    double proof_us = 0, proof_promised_us = 0;
    bool plain_known() const { return steps[0].known(); }
  };
  enum class Aim { none, planned, tryout };

  Costs& costs_of(int requests);
  double least_us(const Costs& costs, int length) const;
  template <typename TokensOf>
  int best_length(const Costs& costs, int requests, int most, const TokensOf& tokens_with) const;
  int usual_length(const Costs& costs, int requests, int awake, int most) const;
  static int try_or_sleep(std::span<LengthState* const> states, int usual, int longest);
  double trials_us(const Costs& costs) const;
  void judge(Costs& costs);
  void measure_plain(Costs& costs, const DraftedStep& step);

  const AdaptiveOptions options_;
  std::array<Costs, kCostBuckets> costs_;
  int burst_left_ = 0;               // steps without guesses to come, to measure them
  bool catches_up_ = false;          // the draft model, in the step after those
  int plain_run_ = 0;                // such steps in a row that are done
  Aim aim_ = Aim::none;              // of the step planned last
  int awake_ = 0;                    // of its requests
};

}  // namespace warpweave
