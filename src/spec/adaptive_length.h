// How many tokens a draft model guesses for each request of a step: what gains most for what it costs
// (--speculative-adaptive). Pure: told of times and outcomes, it plans; the clock is the caller's.
//
// The rule.
// - Gain: guesses come true one after the other, each with the probability `right` of its request, a running mean that
//   begins at that of all requests. A step with k guesses gives 1 + right + ... + right^k tokens.
// - Cost: a step of n requests takes plain(n) without guesses, and with them plain(n) + keep(n), what the draft model
//   spends on following the text, + pass(n) for each level of guesses + guess(n) for each guess that is checked. All are
//   running means of measured steps, n by powers of two.
// - Plan: the longest length is the one with most tokens a second; a request gets fewer guesses where another one of its
//   own would gain less than it costs. None, where that is not kLeastGain better than a step without.
// - Trials: a request for which nothing is planned tries one guess in each of kTrials steps, then it sleeps: it guesses no
//   more, and the draft model follows its text no longer. As many requests try in a step as cost half a step; where two in
//   a row fell asleep, the others do at once, and those that come sleep from the start, but one whenever kTrialShare of
//   the time since the last such would pay its trials. So what does not pay costs little, and is found when it pays again.
// - Proof: where kProofSteps steps with planned guesses gave fewer tokens a second than plain(n) promises, nothing is planned
//   at this n for kDoubtSteps steps, whatever the means say.
// - One step in kEarlyRefreshSteps goes without guesses, to measure plain(n), later one in kRefreshSteps.
// One thread calls everything.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace warpweave {

struct AdaptiveOptions {
  int max_length = 1;
};

// What is known of one request.
struct LengthState {
  double right = 0;            // probability that a guess comes true, if those before it did
  int trials_left = 0;
  bool asleep = false;
  int length = 0;              // planned for the coming step
};

// One step of decoding that is done.
struct DraftedStep {
  int requests = 0;
  int guesses = 0;             // checked, of all requests
  int levels = 0;              // of the longest chain
  int tokens = 0;              // that came of it, one a request at least
  double step_us = 0;          // all of it
  double draft_us = 0;         // of that, the draft model's
};

class AdaptiveLength {
 public:
  static constexpr int kTrials = 8;
  static constexpr double kTrialShare = 0.01;
  static constexpr int kEarlyRefreshSteps = 16, kRefreshSteps = 128;
  static constexpr int kProofSteps = 64, kDoubtSteps = 256;
  static constexpr double kLeastGain = 1.02;

  explicit AdaptiveLength(const AdaptiveOptions& options) : options_(options) {}

  // For a request that comes where `running` decode.
  LengthState begin(int running);
  // Sets the length of each request of the coming step, which has `requests` in all.
  void plan(std::span<LengthState* const> states, int requests);
  void measured(const DraftedStep& step);
  void outcome(LengthState& state, int guesses, int accepted);

 private:
  // A running mean that a single outlier moves little.
  struct Mean {
    double value = 0;
    int count = 0;
    void add(double x);
    void add_cautiously(double x);   // of what guesses are compared with
  };
  struct Costs {
    Mean plain, keep, level, guess;  // in microseconds
    int since_plain = 0;
    // Of planned guesses: what came of the steps since the last judgement.
    bool planned = false;
    int proof_steps = 0, doubt_steps = 0;
    double proof_us = 0, proof_promised_us = 0;
    int slept = 0;                   // requests in a row that fell asleep
    int since_scout = 0;             // steps since a request came that was to try although those before slept
  };
  static constexpr int kBuckets = 16;
  static int bucket_of(int requests);
  Costs& costs_of(int requests) { return costs_[bucket_of(requests)]; }
  int own_length(const LengthState& state, int longest, double guess_price) const;
  int best_length(std::span<LengthState* const> states, int requests, const Costs& costs) const;
  bool doubted(Costs& costs) const;
  void try_or_sleep(LengthState& state, int& tries, Costs& costs);

  const AdaptiveOptions options_;
  std::array<Costs, kBuckets> costs_;
  double right_ = 0.6;               // of all requests; a guess of usual heads, until measured
};

}  // namespace warpweave
