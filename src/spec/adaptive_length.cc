#include "spec/adaptive_length.h"

#include <algorithm>

namespace warpweave {
namespace {

constexpr double kMargin =
    1.1;  // over a guess's price, for the likeliest of many uncertain ones seem likelier than they are
constexpr int kSleepersBelieved = 2;                               // requests in a row, then others need no trials
constexpr int kMostHalvings = 3;                                   // of the share of time that scouts get
constexpr int kPlainSteps = 4;                                     // measured before anything is tried
constexpr int kPlainStepsKnown = 8;                                // then plain(n) is taken for known

}  // namespace

AdaptiveLength::AdaptiveLength(const AdaptiveOptions& options) : options_(options) {
  // A greedy choice is the head's likeliest token more often than the head says.
  for (int i = 0; i < kSurenesses; ++i) by_sureness_[i] = {.first = 0.4 + 0.5 * i / (kSurenesses - 1), .next = right_};
}

static int sureness(double first) {
  return std::clamp(static_cast<int>(first * AdaptiveLength::kSurenesses), 0, AdaptiveLength::kSurenesses - 1);
}

AdaptiveLength::Rights AdaptiveLength::usually(const LengthState& state) const { return {state.right, state.right}; }

AdaptiveLength::Rights AdaptiveLength::now(const LengthState& state) const {
  if (state.first < 0) return usually(state);
  return by_sureness_[sureness(state.first)];
}

double AdaptiveLength::Rights::tokens(int length) const {
  double all = 1, right = first;
  for (int k = 0; k < length; ++k, right *= next) all += right;
  return all;
}

void AdaptiveLength::outcome(LengthState& state, int guesses, int accepted) {
  LengthPlanner::outcome(state, guesses, accepted);
  if (state.first < 0) return;
  constexpr double kWeight = 1.0 / 32;
  Rights& known = by_sureness_[sureness(state.first)];
  known.first += kWeight * ((accepted > 0 ? 1 : 0) - known.first);
  for (int k = 1; k < std::min(accepted + 1, guesses); ++k) {
    known.next += kWeight * ((accepted > k ? 1 : 0) - known.next);
  }
}

// Of the draft model, for chains of so many: the first guess is what a head said when it followed the text.
int AdaptiveLength::passes(int levels) const { return options_.knows_first ? std::max(0, levels - 1) : levels; }

bool AdaptiveLength::Costs::believed_vain() const { return slept >= kSleepersBelieved; }

void AdaptiveLength::sleep(LengthState& state, Costs& costs) const {
  state.asleep = true;
  state.slept_bucket = static_cast<int>(&costs - costs_.data());
  state.slept_epoch = costs.epoch;
}

LengthState AdaptiveLength::begin(int running) {
  LengthState out = {.right = right_, .trials_left = kTrials};
  Costs& costs = costs_of(running);
  if (costs.believed_vain()) sleep(out, costs);
  return out;
}

void AdaptiveLength::wake(std::span<LengthState* const> states) {
  if (states.empty()) return;
  const auto bucket = cost_bucket(static_cast<int>(states.size()));
  Costs& costs = costs_[bucket];
  const auto wake = [](LengthState& state) {
    state.asleep = state.guessed = state.scout = false;
    state.trials_left = kTrials;
  };
  bool all_sleep = true;
  for (LengthState* state : states) {
    const bool elsewhere = state->slept_bucket != bucket || state->slept_epoch != costs.epoch;
    if (state->asleep && elsewhere && !costs.believed_vain()) wake(*state);
    all_sleep &= state->asleep;
  }
  const double trial_us =
      costs.keep.value + costs.wait.value + passes(1) * level_us(costs) + costs.guess.value;
  const double trials_us = kTrials * trial_us * (1 << std::min(costs.vain_scouts, kMostHalvings));
  if (!all_sleep || costs.since_scout * costs.plain.value * kTrialShare < trials_us) return;
  LengthState& scout = *states[costs.scouts++ % states.size()];
  wake(scout);
  scout.scout = true;
  costs.since_scout = 0;
  ++costs.vain_scouts;  // until guesses are planned
}

// Guesses that each gain more than they cost, at `guess_price` tokens.
int AdaptiveLength::own_length(const Rights& rights, int longest, double guess_price) {
  int length = 0;
  for (double gain = rights.first; length < longest && gain > kMargin * guess_price; gain *= rights.next) ++length;
  return length;
}

int AdaptiveLength::best_length(std::span<LengthState* const> states, int requests, int most, RightsOf rights) const {
  const Costs& costs = costs_of(requests);
  const double plain_rate = requests / costs.plain.value;
  const double guess_price = costs.guess.value * plain_rate;
  double best_rate = plain_rate * kLeastGain;
  int best = 0;
  for (int longest = 1; longest <= std::min(most, options_.max_length); ++longest) {
    double tokens = requests, time = costs.plain.value + costs.keep.value + costs.wait.value;
    int levels = 0;
    for (const LengthState* state : states) {
      if (state->asleep) continue;
      const Rights own = (this->*rights)(*state);
      const int length = own_length(own, longest, guess_price);
      tokens += own.tokens(length) - 1;
      time += length * costs.guess.value;
      levels = std::max(levels, length);
    }
    time += passes(levels) * level_us(costs);
    if (tokens / time <= best_rate) continue;
    best_rate = tokens / time;
    best = longest;
  }
  return best;
}

// Planned guesses that did not bring what they promised are left out for a while.
void AdaptiveLength::judge(Costs& costs) {
  if (costs.doubt_steps > 0) --costs.doubt_steps;
  if (costs.proof_steps < kProofSteps) return;
  if (costs.proof_us > kLeastGain * costs.proof_promised_us) costs.doubt_steps = kDoubtSteps;
  costs.proof_steps = 0;
  costs.proof_us = costs.proof_promised_us = 0;
}

// A head's pass over one row takes no longer than the one that follows a text. So a pass that was slow once, when
// nothing was in the caches yet, is not shunned for good: trials have one guess, which takes no such pass.
double AdaptiveLength::level_us(const Costs& costs) const {
  const bool bounded = options_.knows_first && costs.keep.count > 0;
  return bounded ? std::min(costs.level.value, costs.keep.value) : costs.level.value;
}

// `tries`: how many requests may still try in this step.
void AdaptiveLength::try_or_sleep(LengthState& state, int& tries, Costs& costs) const {
  if (state.asleep) return;
  const bool believed = costs.believed_vain() && !state.scout;
  const bool has_none = options_.knows_first && state.first < 0;
  if (state.trials_left == 0 || (believed && !state.guessed)) {
    sleep(state, costs);
    ++costs.slept;
  } else if (believed || has_none) {
    --state.trials_left;
  } else if (tries > 0) {
    --tries;
    --state.trials_left;
    state.length = 1;
  }
}

void AdaptiveLength::plan(std::span<LengthState* const> states, int requests, int most) {
  Costs& costs = costs_of(requests);
  ++costs.since_scout;
  judge(costs);
  for (LengthState* state : states) state->length = 0;
  rests_ = only_looks_up(requests);
  if (rests_) return;
  const bool awake = std::any_of(states.begin(), states.end(), [](const LengthState* state) { return !state->asleep; });
  if (!awake || costs.plain.count < kPlainSteps) return;
  costs.planned = false;
  if (++costs.since_plain > (costs.plain.count < kPlainStepsKnown ? kEarlyRefreshSteps : kRefreshSteps)) return;
  const bool known = costs.guess.count > 0;
  const bool believed = known && costs.doubt_steps == 0;
  const bool pays = believed && best_length(states, requests, most, &AdaptiveLength::usually) > 0;
  const int longest = pays ? std::max(1, best_length(states, requests, most, &AdaptiveLength::now)) : 0;
  costs.planned = pays;
  const double guess_price = costs.guess.value * requests / costs.plain.value;
  int tries = 1;
  if (known) tries = std::max(tries, static_cast<int>(costs.plain.value / (2 * std::max(costs.guess.value, 1.0))));
  for (LengthState* state : states) {
    const bool has_some = !options_.knows_first || state->first >= 0;
    if (pays && has_some && !state->asleep && own_length(usually(*state), 1, guess_price) > 0) {
      state->length = std::max(1, own_length(now(*state), longest, guess_price));
    }
    if (state->length == 0) {
      try_or_sleep(*state, tries, costs);
    } else {
      state->trials_left = kTrials;
      state->guessed = true;
      if (costs.believed_vain()) ++costs.epoch;
      costs.slept = costs.vain_scouts = 0;
    }
  }
}

void AdaptiveLength::measured(const DraftedStep& step) {
  Costs& costs = costs_of(step.requests);
  const double target_us = step.step_us - step.draft_us;
  if (step.requests == 1 && costs.plain.count >= kPlainStepsKnown) {
    turns_.measured(step.tokens, step.step_us + step.waited_us, costs.usual_plain.value);
  }
  if (step.waited_us > 0) costs.wait.add_cautiously(step.waited_us);
  if (step.guesses == 0) {
    costs.plain.add_cautiously(target_us);
    costs.usual_plain.add(target_us);
    costs.since_plain = 0;
    if (step.follows) costs.keep.add_cautiously(step.draft_us);
    return;
  }
  if (costs.plain.count == 0) return;
  if (target_us < costs.plain.value) costs.plain.add_cautiously(target_us);  // without guesses it had not been slower
  if (costs.planned) {
    ++costs.proof_steps;
    costs.proof_us += step.step_us + step.waited_us;
    costs.proof_promised_us += costs.usual_plain.value * step.tokens / step.requests;
  }
  costs.guess.add_cautiously(std::max(0.0, target_us - costs.plain.value) / step.guesses);
  if (step.levels > 0 && passes(step.levels) == 0) costs.keep.add_cautiously(step.draft_us);
  if (passes(step.levels) == 0) return;
  costs.level.add_cautiously(std::max(0.0, step.draft_us - costs.keep.value) / passes(step.levels));
}

}  // namespace warpweave
