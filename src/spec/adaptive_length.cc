#include "spec/adaptive_length.h"

#include <algorithm>
#include <bit>

namespace warpweave {
namespace {

constexpr double kOwnWeight = 1.0 / 16, kCommonWeight = 1.0 / 64;  // of an outcome in the running means
constexpr int kSleepersBelieved = 2;                               // requests in a row, then others need no trials
constexpr int kPlainSteps = 2;                                     // measured before anything is tried

double tokens_of(double right, int length) {
  double all = 1, next = right;
  for (int k = 0; k < length; ++k, next *= right) all += next;
  return all;
}

}  // namespace

void AdaptiveLength::Mean::add(double x) {
  if (count > 0) x = std::clamp(x, value / 2, std::max(2 * value, 1.0));
  ++count;
  value += (x - value) / std::min(count, 8);
}

int AdaptiveLength::bucket_of(int requests) {
  return std::min<int>(std::bit_width(static_cast<unsigned>(std::max(requests, 1) - 1)), kBuckets - 1);
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
int AdaptiveLength::own_length(const LengthState& state, int longest, double guess_price) const {
  if (state.asleep) return 0;
  if (options_.uniform) return longest;
  int length = 0;
  for (double gain = state.right; length < longest && gain > guess_price; gain *= state.right) ++length;
  return length;
}

int AdaptiveLength::best_length(std::span<LengthState* const> states, int requests, const Costs& costs) const {
  const double plain_rate = requests / costs.plain.value;
  const double guess_price = costs.guess.value * plain_rate;
  double best_rate = plain_rate * kLeastGain;
  int best = 0;
  for (int longest = 1; longest <= options_.max_length; ++longest) {
    double tokens = requests, time = costs.plain.value + costs.keep.value;
    int levels = 0;
    for (const LengthState* state : states) {
      const int length = own_length(*state, longest, guess_price);
      tokens += tokens_of(state->right, length) - 1;
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

void AdaptiveLength::plan(std::span<LengthState* const> states, int requests) {
  Costs& costs = costs_of(requests);
  ++costs.since_scout;
  for (LengthState* state : states) state->length = 0;
  const bool awake = std::any_of(states.begin(), states.end(), [](const LengthState* state) { return !state->asleep; });
  if (!awake || costs.plain.count < kPlainSteps) return;
  if (++costs.since_plain > kRefreshSteps) {
    costs.since_plain = 0;
    return;
  }
  const bool known = costs.guess.count > 0;
  const int longest = known ? best_length(states, requests, costs) : 0;
  const double guess_price = costs.guess.value * requests / costs.plain.value;
  int tries = options_.uniform ? requests : 1;
  if (known) tries = std::max(tries, static_cast<int>(costs.plain.value / (2 * std::max(costs.guess.value, 1.0))));
  for (LengthState* state : states) {
    if (longest > 0) state->length = own_length(*state, longest, guess_price);
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
    costs.plain.add(target_us);
    costs.since_plain = 0;
    if (step.draft_us > 0) costs.keep.add(step.draft_us);
    return;
  }
  if (costs.plain.count == 0) return;
  costs.guess.add(std::max(0.0, target_us - costs.plain.value) / step.guesses);
  costs.level.add(std::max(0.0, step.draft_us - costs.keep.value) / step.levels);
}

void AdaptiveLength::outcome(LengthState& state, int guesses, int accepted) {
  const auto count = [&](double right) {
    state.right += kOwnWeight * (right - state.right);
    right_ += kCommonWeight * (right - right_);
  };
  for (int i = 0; i < accepted; ++i) count(1);
  if (accepted < guesses) count(0);
}

}  // namespace warpweave
