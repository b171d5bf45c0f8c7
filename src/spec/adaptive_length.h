// Lengths of guesses where each request of a step may have its own (length_planner.h).
//
// The rule.
// - Cost: a step of n requests takes plain(n) without guesses, and with them plain(n) + keep(n), what the draft model
//   spends on following the text, + wait(n), while the device has nothing to do because the step was not made beside
//   the one before, + pass(n) for each pass that drafts + guess(n) for each guess that is checked. All are running
//   means of measured steps that follow fast ones sooner than slow ones, n by powers of two.
// - Plan: the longest length is the one with most tokens a second; a request gets fewer guesses where another one of
//   its own would gain less than it costs. None, where that is not kLeastGain better than a step without.
// - Sureness: where some number pays, it is that for how often guesses came true, of all requests, behind a first one
//   that the draft model was as sure of, by eighths of its probability: chains are long where they are likely to stand
//   and short elsewhere, of one guess at least.
// - Trials: a request for which nothing is planned tries one guess in each of kTrials steps, then it sleeps: it guesses
//   no more, and the draft model follows its text no longer.
//   As many try in a step as cost half a step; where two in a row fell asleep, the others do at once, but those that
//   guessed before with fewer beside them stay awake for kTrials steps, and those that come then sleep from the start.
//   So what does not pay costs little.
// - Waking: one that sleeps wakes where n became one with which guesses may pay. Where all sleep, one of them is woken
//   as a scout whenever kTrialShare of the time since the last would pay its trials, half as much after each scout that
//   found nothing, down to an eighth; if one finds that guesses pay, all wake. The draft model sees nothing of what it
//   did not follow (Drafter).
// - Proof: where kProofSteps steps with planned guesses gave fewer tokens a second than plain(n) promises, nothing is
//   planned at this n for kDoubtSteps steps, whatever the means say.
// - Turns: where earlier text is looked up, a single request's draft model rests while that gives more (LookupTurns).
// - One step in kEarlyRefreshSteps goes without guesses, to measure plain(n), later one in kRefreshSteps.
#pragma once

#include <array>
#include <span>

#include "spec/length_planner.h"
#include "spec/lookup_turns.h"

namespace warpweave {

class AdaptiveLength : public LengthPlanner {
 public:
  static constexpr int kTrials = 8;
  static constexpr double kTrialShare = 0.01;
  static constexpr int kEarlyRefreshSteps = 16, kRefreshSteps = 128;
  static constexpr int kProofSteps = 64, kDoubtSteps = 256;
  static constexpr double kLeastGain = 1.02;

  static constexpr int kSurenesses = 8;

  explicit AdaptiveLength(const AdaptiveOptions& options);

  LengthState begin(int running) override;
  void wake(std::span<LengthState* const> states) override;
  bool only_looks_up(int requests) const override {
    return options_.looks_up && requests == 1 && turns_.alone();
  }
  bool follows() const override { return !rests_; }
  void plan(std::span<LengthState* const> states, int requests, int most) override;
  void measured(const DraftedStep& step) override;
  void outcome(LengthState& state, int guesses, int accepted) override;

 private:
  // Probabilities that the first guess comes true, and each further one, if those before it did.
  struct Rights {
    double first = 0, next = 0;
    double tokens(int length) const;
  };
  struct Costs {
    RunningCost plain, keep, wait, level, guess;  // in microseconds, of steps that nothing slows
    RunningCost usual_plain;                      // and as steps are
    int since_plain = 0;
    // Of planned guesses: what came of the steps since the last judgement.
    bool planned = false;
    int proof_steps = 0, doubt_steps = 0;
    double proof_us = 0, proof_promised_us = 0;
    int slept = 0;                   // requests in a row that fell asleep
    int epoch = 0;                   // how often it was found that guesses pay after all
    int since_scout = 0;             // steps since one was woken that was to try although all slept
    int scouts = 0;
    int vain_scouts = 0;             // in a row
    bool believed_vain() const;
  };
  Costs& costs_of(int requests) { return costs_[cost_bucket(requests)]; }
  const Costs& costs_of(int requests) const { return costs_[cost_bucket(requests)]; }
  Rights now(const LengthState& state) const;      // of the coming step
  Rights usually(const LengthState& state) const;
  static int own_length(const Rights& rights, int longest, double guess_price);
  using RightsOf = Rights (AdaptiveLength::*)(const LengthState& state) const;
  int best_length(std::span<LengthState* const> states, int requests, int most, RightsOf rights) const;
  int passes(int levels) const;
  static void judge(Costs& costs);
  double level_us(const Costs& costs) const;
  void sleep(LengthState& state, Costs& costs) const;
  void try_or_sleep(LengthState& state, int& tries, Costs& costs) const;

  const AdaptiveOptions options_;
  std::array<Rights, kSurenesses> by_sureness_;  // by how sure the draft model was of the first guess
  std::array<Costs, kCostBuckets> costs_;
  LookupTurns turns_;   // of single requests
  bool rests_ = false;  // the draft model, in the step at hand
};

}  // namespace warpweave
