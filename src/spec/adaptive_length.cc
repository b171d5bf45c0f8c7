#include "spec/adaptive_length.h"

#include <algorithm>

namespace warpweave {
namespace {

constexpr double kMargin =
    1.1;  // over a guess's price, for the likeliest of many uncertain ones seem likelier than they are
constexpr int kSleepersBelieved = 2;                               // requests in a row, then others need no trials
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

LengthState AdaptiveLength::begin(int running) {
  Costs& costs = costs_of(running);
  LengthState out = {.right = right_, .trials_left = kTrials};
  if (costs.slept < kSleepersBelieved) return out;
  const double trials_us = kTrials * (costs.keep.value + costs.level.value + costs.guess.value);
  out.asleep = costs.since_scout * costs.plain.value * kTrialShare < trials_us;
  if (!out.asleep) costs.since_scout = 0;
  return out;
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
    double tokens = requests, time = costs.plain.value + costs.keep.value;
    int levels = 0;
    for (const LengthState* state : states) {
      if (state->asleep) continue;
      const Rights own = (this->*rights)(*state);
      const int length = own_length(own, longest, guess_price);
      tokens += own.tokens(length) - 1;
      time += length * costs.guess.value;
      levels = std::max(levels, length);
    }
    time += levels * costs.level.value;
    if (tokens / time <= best_rate) continue;
    best_rate = tokens / time;
    best = longest;
  }
  return best;
}

// Whether planned guesses are to be left out, for they did not bring what they promised.
bool AdaptiveLength::doubted(Costs& costs) const {
  if (costs.proof_steps >= kProofSteps) {
    if (costs.proof_us > kLeastGain * costs.proof_promised_us) costs.doubt_steps = kDoubtSteps;
    costs.proof_steps = 0;
    costs.proof_us = costs.proof_promised_us = 0;
  }
  return costs.doubt_steps > 0 && costs.doubt_steps-- > 0;
}

// `tries`: how many requests may still try in this step.
void AdaptiveLength::try_or_sleep(LengthState& state, int& tries, Costs& costs) {
  if (state.asleep) return;
  if (state.trials_left > 0 && tries > 0) {
    --tries;
    --state.trials_left;
    state.length = 1;
  } else if (state.trials_left == 0 || costs.slept >= kSleepersBelieved) {
    state.asleep = true;
    ++costs.slept;
  }
}

void AdaptiveLength::plan(std::span<LengthState* const> states, int requests, int most) {
  Costs& costs = costs_of(requests);
  ++costs.since_scout;
  for (LengthState* state : states) state->length = 0;
  const bool awake = std::any_of(states.begin(), states.end(), [](const LengthState* state) { return !state->asleep; });
  if (!awake || costs.plain.count < kPlainSteps) return;
  costs.planned = false;
  if (++costs.since_plain > (costs.plain.count < kPlainStepsKnown ? kEarlyRefreshSteps : kRefreshSteps)) return;
  const bool known = costs.guess.count > 0;
  const bool believed = known && !doubted(costs);
  const bool pays = believed && best_length(states, requests, most, &AdaptiveLength::usually) > 0;
  const int longest = pays ? std::max(1, best_length(states, requests, most, &AdaptiveLength::now)) : 0;
  costs.planned = pays;
  const double guess_price = costs.guess.value * requests / costs.plain.value;
  int tries = 1;
  if (known) tries = std::max(tries, static_cast<int>(costs.plain.value / (2 * std::max(costs.guess.value, 1.0))));
  for (LengthState* state : states) {
    if (pays && !state->asleep && own_length(usually(*state), 1, guess_price) > 0) {
      state->length = std::max(1, own_length(now(*state), longest, guess_price));
    }
    if (state->length == 0) {
      try_or_sleep(*state, tries, costs);
    } else {
      state->trials_left = kTrials;
      costs.slept = 0;
    }
  }
}

void AdaptiveLength::measured(const DraftedStep& step) {
  Costs& costs = costs_of(step.requests);
  const double target_us = step.step_us - step.draft_us;
  if (step.guesses == 0) {
    costs.plain.add_cautiously(target_us);
    costs.since_plain = 0;
    if (step.draft_us > 0) costs.keep.add(step.draft_us);
    return;
  }
  if (costs.plain.count == 0) return;
  if (target_us < costs.plain.value) costs.plain.add_cautiously(target_us);  // without guesses it had not been slower
  if (costs.planned) {
    ++costs.proof_steps;
    costs.proof_us += step.step_us;
    costs.proof_promised_us += costs.plain.value * step.tokens / step.requests;
  }
  costs.guess.add(std::max(0.0, target_us - costs.plain.value) / step.guesses);
  if (step.levels > 0) costs.level.add(std::max(0.0, step.draft_us - costs.keep.value) / step.levels);
}

}  // namespace warpweave
