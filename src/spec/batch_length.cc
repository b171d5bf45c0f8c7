#include "spec/batch_length.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace warpweave {
namespace {

// From twice as many requests in a step on, each moves the mean of all requests less, or one step would outweigh those
// before.
constexpr int kTellers = 4;

}  // namespace

BatchLength::BatchLength(const AdaptiveOptions& options) : options_(options) {
  for (Costs& costs : costs_) costs.steps.resize(options.max_length + 1);
}

BatchLength::Costs& BatchLength::costs_of(int requests) { return costs_[cost_bucket(requests)]; }

// What a step of this length takes, or where that is not known, what it takes at least: more guesses never take less,
// and each takes no more than those before it, on an average.
double BatchLength::least_us(const Costs& costs, int length) const {
  const StepCost& own = costs.steps[length];
  if (own.known()) return own.us.value;
  if (own.attempts >= kMostAttempts) return std::numeric_limits<double>::infinity();
  int below = length - 1;
  while (!costs.steps[below].known()) --below;  // [0] is
  const double below_us = costs.steps[below].us.value;
  for (int above = length + 1; above <= options_.max_length; ++above) {
    if (!costs.steps[above].known()) continue;
    const double share = static_cast<double>(length - below) / (above - below);
    return below_us + share * std::max(0.0, costs.steps[above].us.value - below_us);
  }
  return below_us;
}

// The length with most tokens a second, `tokens_with(length)` a step; 0 where none is worth it. Of lengths that are not
// known the longest.
template <typename TokensOf>
int BatchLength::best_length(const Costs& costs, int requests, int most, const TokensOf& tokens_with) const {
  double best_rate = kLeastGain * requests / costs.steps[0].us.value;
  int best = 0;
  for (int length = 1; length <= std::min(most, options_.max_length); ++length) {
    const double rate = tokens_with(length) / least_us(costs, length);
    if (rate <= best_rate) continue;
    best_rate = rate;
    best = length;
  }
  return best;
}

// The best length where `awake` requests are as requests usually are, and nobody guesses right for the others.
int BatchLength::usual_length(const Costs& costs, int requests, int awake, int most) const {
  if (costs.doubt_left > 0) return 0;
  return best_length(costs, requests, most,
                     [&](int length) { return requests + awake * (tokens_of(right_, length) - 1); });
}

// What a scout's steps take beyond those that they stand for.
double BatchLength::trials_us(const Costs& costs) const {
  double longest_us = 0;
  for (const StepCost& step : costs.steps) {
    if (step.known()) longest_us = std::max(longest_us, step.us.value);
  }
  return kTrials * (longest_us - costs.steps[0].us.value);
}

LengthState BatchLength::begin(int running) {
  Costs& costs = costs_of(running);
  LengthState out = {.right = right_, .trials_left = kTrials};
  if (!costs.plain_known() || usual_length(costs, running, running, options_.max_length) > 0) return out;
  out.asleep = kTrialShare * costs.since_scout_us < trials_us(costs);
  if (out.asleep) return out;
  costs.since_scout_us = 0;
  out.scout = true;
  return out;
}

// The length of a step for which nothing is planned. `usual`: for requests of the usual kind, which a bad start must
// not send to sleep; 0: only scouts try, `longest`.
int BatchLength::try_or_sleep(std::span<LengthState* const> states, int usual, int longest) {
  int length = 0;
  for (LengthState* state : states) {
    if (state->asleep) continue;
    if (state->trials_left > 0 && (usual > 0 || state->scout)) {
      --state->trials_left;
      length = std::max(length, state->scout ? longest : usual);
    } else {
      state->asleep = true;
    }
  }
  return length;
}

void BatchLength::plan(std::span<LengthState* const> states, int requests, int most) {
  aim_ = Aim::none;
  const auto awake = [](const LengthState* state) { return !state->asleep; };
  awake_ = static_cast<int>(std::count_if(states.begin(), states.end(), awake));
  for (LengthState* state : states) state->length = 0;
  if (awake_ == 0 || std::exchange(catches_up_, false)) return;
  Costs& costs = costs_of(requests);
  if (!costs.plain_known() || ++costs.since_plain > kRefreshSteps) {
    burst_left_ = kBurst;
    return;
  }
  const auto tokens_with = [&](int length) {
    double tokens = requests;
    for (const LengthState* state : states) tokens += awake(state) ? tokens_of(state->right, length) - 1 : 0;
    return tokens;
  };
  int length = costs.doubt_left > 0 ? 0 : best_length(costs, requests, most, tokens_with);
  if (length > 0) {
    aim_ = costs.steps[length].known() ? Aim::planned : Aim::tryout;
    costs.steps[length].attempts += aim_ == Aim::tryout;
    for (LengthState* state : states) state->trials_left = kTrials;
  } else {
    length = try_or_sleep(states, usual_length(costs, requests, awake_, most), std::min(most, options_.max_length));
  }
  for (LengthState* state : states) state->length = length;
}

// What planned steps brought, against what steps without guesses would have.
void BatchLength::judge(Costs& costs) {
  if (costs.proof_steps < kProofSteps) return;
  if (costs.proof_us > costs.proof_promised_us) {
    costs.doubt_left = costs.doubt_steps;
    costs.doubt_steps = std::min(2 * costs.doubt_steps, kMostDoubtSteps);
  } else {
    costs.doubt_steps = kDoubtSteps;
  }
  costs.proof_steps = 0;
  costs.proof_us = costs.proof_promised_us = 0;
}

void BatchLength::measure_plain(Costs& costs, const DraftedStep& step) {
  ++plain_run_;
  if (burst_left_ > 0) catches_up_ = --burst_left_ == 0;
  if (costs.doubt_left > 0) --costs.doubt_left;
  costs.since_scout_us += step.since_last_us;
  if (step.since_last_us <= 0 || plain_run_ <= kBurstLead) return;
  costs.steps[0].us.add(step.since_last_us);
  costs.since_plain = 0;
}

void BatchLength::measured(const DraftedStep& step) {
  Costs& costs = costs_of(step.requests);
  if (step.guesses == 0 && !step.follows) return measure_plain(costs, step);
  plain_run_ = 0;
  if (step.guesses == 0 || step.since_last_us <= 0 || !costs.plain_known()) return;
  if (step.guesses == step.requests * step.levels && step.levels <= options_.max_length) {
    costs.steps[step.levels].us.add(step.since_last_us);
  }
  if (aim_ != Aim::planned) return;
  ++costs.proof_steps;
  costs.proof_us += step.since_last_us;
  costs.proof_promised_us += costs.steps[0].us.value * step.tokens / step.requests;
  judge(costs);
}

// Guesses of a request that sleeps only fill the step's shape.
void BatchLength::outcome(LengthState& state, int guesses, int accepted) {
  if (!state.asleep) learn(state, guesses, accepted, std::max(1, awake_ / kTellers));
}

}  // namespace warpweave
