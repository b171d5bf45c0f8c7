// How many tokens a draft model guesses for each request of a step (--speculative-adaptive): what gains most for what
// it costs. Pure: told of times and outcomes, it plans; the clock is the caller's. One thread calls everything.
//
// Two rules: AdaptiveLength, where a step may have other lengths for each request and nothing is lost by waiting for it
// (CPUs), and BatchLength, where all requests of a step get as many and steps without guesses overlap (GPUs).
//
// What both know of guesses: they come true one after the other, each with the probability `right` of its request, a
// running mean that begins at that of all requests. A step with k guesses gives 1 + right + ... + right^k tokens.
// Where the draft model has said how sure it is of the first guess, AdaptiveLength goes by what came of such guesses.
#pragma once

#include <memory>
#include <span>

namespace warpweave {

struct AdaptiveOptions {
  int max_length = 1;
  bool whole_batch = false;    // BatchLength's rule
  bool knows_first = false;    // AdaptiveLength: who has not said how sure the first guess is has none (heads)
  bool looks_up = false;       // AdaptiveLength: what earlier text says may be checked in place of drafts (LookupTurns)
};

// What is known of one request.
struct LengthState {
  double right = 0;            // probability that a guess comes true, if those before it did
  double first = -1;           // of the coming step's first guess, as the draft model says; negative: unknown
  int trials_left = 0;         // steps with guesses although they seem not to pay
  bool scout = false;          // tries where others sleep
  bool asleep = false;         // it guesses no more, and the draft model follows its text no longer
  // AdaptiveLength: guesses were planned for it; and with how many others it fell asleep, and when.
  bool guessed = false;
  int slept_bucket = -1, slept_epoch = 0;
  int length = 0;              // planned for the coming step
};

// One step of decoding that is done.
struct DraftedStep {
  int requests = 0;
  int guesses = 0;             // checked, of all requests
  int levels = 0;              // of the longest chain
  int tokens = 0;              // that came of it, one a request at least
  bool follows = false;        // the draft model read what came of it
  double step_us = 0;          // all of it, on the device: what AdaptiveLength reads
  double draft_us = 0;         // of that, the draft model's
  // From the end of the step before to this one's end, as the host saw them: BatchLength reads it. 0: it tells nothing,
  // for the step before was not one of decode with as many requests, or this one made something that others use, too.
  double since_last_us = 0;
  double waited_us = 0;        // of since_last_us, while the device had nothing to do; 0 where steps overlap
};

class LengthPlanner {
 public:
  virtual ~LengthPlanner() = default;
  // For a request that comes where `running` decode.
  virtual LengthState begin(int running) = 0;
  // Before a step is made, of all that decode: some that sleep may wake.
  virtual void wake(std::span<LengthState* const> states) { (void)states; }
  // Whether the next step is to have room for guesses, if some request is awake; else steps overlap.
  virtual bool may_guess() const { return true; }
  // Whether that room is only for what earlier text says, of so many requests that decode: nothing is drafted then.
  virtual bool only_looks_up(int requests) const {
    (void)requests;
    return false;
  }
  // Whether the draft model is to read what comes of the coming step, of requests that are awake.
  virtual bool follows() const { return true; }
  // Sets the length of each request of the coming step that may guess, `most` at most; the step has `requests` in all.
  virtual void plan(std::span<LengthState* const> states, int requests, int most) = 0;
  virtual void measured(const DraftedStep& step) = 0;
  virtual void outcome(LengthState& state, int guesses, int accepted) { learn(state, guesses, accepted, 1); }

 protected:
  // `tellers`: by so much less the outcome counts for all requests.
  void learn(LengthState& state, int guesses, int accepted, int tellers);
  // Tokens of a step with `length` guesses.
  static double tokens_of(double right, int length);

  double right_ = 0.6;         // of all requests; a guess of usual heads, until measured
};

std::unique_ptr<LengthPlanner> make_length_planner(const AdaptiveOptions& options);

// A running mean that a single outlier moves little.
struct RunningCost {
  double value = 0;
  int count = 0;
  void add(double x);
  void add_cautiously(double x);   // of what guesses are compared with, and of what they cost beside it
};

// Costs are known by batches of similar size: by powers of two.
inline constexpr int kCostBuckets = 16;
int cost_bucket(int requests);

}  // namespace warpweave
