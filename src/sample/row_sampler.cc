#include "sample/row_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/elementwise.h"
#include "sample/kept_guess.h"

namespace warpweave {
namespace {

using Candidate = std::pair<float, int32_t>;  // weight, id

bool heavier(const Candidate& a, const Candidate& b) {
  return a.first > b.first || (a.first == b.first && a.second < b.second);
}

// Sorts at least the first `wanted` candidates to the front, heaviest first.
void sort_front(std::vector<Candidate>& candidates, size_t sorted, size_t wanted) {
  wanted = std::min(wanted, candidates.size());
  if (wanted <= sorted) return;
  const auto begin = candidates.begin() + sorted;
  if (wanted < candidates.size()) {
    std::nth_element(begin, candidates.begin() + wanted, candidates.end(), heavier);
  }
  std::sort(begin, candidates.begin() + wanted, heavier);
}

// The shortest heaviest-first prefix whose weight reaches `mass`; only that prefix gets sorted.
size_t nucleus_size(std::vector<Candidate>& candidates, double mass) {
  double sum = 0;
  size_t sorted = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (i == sorted) {
      const size_t next = std::max<size_t>(64, sorted * 4);
      sort_front(candidates, sorted, next);
      sorted = std::min(next, candidates.size());
    }
    sum += candidates[i].first;
    if (sum >= mass) return i + 1;
  }
  return candidates.size();
}

double mass_of(std::span<const Candidate> candidates) {
  double total = 0;
  for (const Candidate& c : candidates) total += c.first;
  return total;
}

int32_t draw_from(std::span<const Candidate> candidates, double total, double draw) {
  double target = draw * total;
  for (const Candidate& c : candidates) {
    target -= c.first;
    if (target < 0) return c.second;
  }
  return candidates.back().second;
}

// No truncation: the draw walks the ids in order, no sorting needed.
int32_t draw_from_all(std::span<const float> weights, double total, double draw) {
  const double target = draw * total;
  double sum = 0;
  int32_t last_possible = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    sum += weights[i];
    last_possible = static_cast<int32_t>(i);
    if (sum > target) return last_possible;
  }
  return last_possible;
}

// What RowGuesses say, for drawn_or_guess(); where the draw alone decides, no guess at all.
KeptGuessRule rule_of(const RowGuesses& guesses) {
  if (guesses.accept.lossless()) return {};
  return {guesses.tokens.data(), static_cast<int>(guesses.tokens.size()), guesses.accept.single, guesses.accept.acc,
          guesses.draw};
}

}  // namespace

bool has_no_nan(std::span<const float> logits) {
  int nans = 0;
  for (const float logit : logits) nans |= logit != logit;
  return nans == 0;
}

double uniform_draw(uint64_t seed, uint64_t position) {
  // splitmix64 of the pair: every (seed, position) is an independent draw.
  uint64_t z = seed * 0x9e3779b97f4a7c15ull + position * 0xd1b54a32d192ed03ull + 0x632be59bd9b4e019ull;
  for (int round = 0; round < 2; ++round) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
  }
  return static_cast<double>(z >> 11) * 0x1.0p-53;
}

int32_t sample_row(std::span<const float> logits, const SamplingParams& params, double draw, RowScratch& scratch,
                   const RowGuesses& guesses) {
  const auto best = static_cast<int32_t>(argmax(logits.data(), logits.size()));
  const float max = logits[best];
  if (!(max > -std::numeric_limits<float>::infinity()) || !has_no_nan(logits)) return kNoToken;
  if (params.temperature == 0 || !std::isfinite(max)) return best;
  scratch.weights.resize(logits.size());
  const double total =
      exp_row(logits.data(), logits.size(), max, 1.0f / params.temperature, scratch.weights.data());
  const bool cut_k = params.top_k > 0 && params.top_k < static_cast<int64_t>(logits.size());
  if (!cut_k && params.top_p >= 1.0f && params.min_p <= 0) {
    return drawn_or_guess(draw_from_all(scratch.weights, total, draw), rule_of(guesses), total,
                          [&](int32_t id) { return std::max(scratch.weights[id], 0.0f); });
  }

  // Weights are relative to the best token's 1, so min_p is a plain threshold; anything below
  // 1e-12 of the whole could only matter to a top_p closer to 1 than a float can say.
  const float floor = std::max(params.min_p, static_cast<float>(total * 1e-12));
  auto& candidates = scratch.candidates;
  candidates.clear();
  for (size_t i = 0; i < scratch.weights.size(); ++i) {
    if (scratch.weights[i] >= floor) candidates.emplace_back(scratch.weights[i], static_cast<int32_t>(i));
  }
  double mass = total;
  if (cut_k && candidates.size() > static_cast<size_t>(params.top_k)) {
    sort_front(candidates, 0, params.top_k);
    candidates.resize(params.top_k);
  }
  if (cut_k) mass = mass_of(candidates);  // top_p is a share of what top_k left
  size_t kept = candidates.size();
  if (params.top_p < 1.0f) kept = nucleus_size(candidates, mass * params.top_p);
  const std::span<const Candidate> left(candidates.data(), kept);
  const double left_mass = mass_of(left);
  return drawn_or_guess(draw_from(left, left_mass, draw), rule_of(guesses), left_mass, [&](int32_t id) {
    const auto found = std::find_if(left.begin(), left.end(), [&](const Candidate& c) { return c.second == id; });
    return found != left.end() ? found->first : 0.0f;
  });
}

PositionLogprobs row_logprobs(std::span<const float> logits, int32_t chosen, int top_num,
                              std::span<const int32_t> wanted) {
  const double log_z = log_sum_exp(logits.data(), logits.size());
  const auto logprob = [&](int32_t id) -> TokenLogprob {
    if (id < 0 || id >= static_cast<int64_t>(logits.size())) {
      return {-std::numeric_limits<float>::infinity(), id};
    }
    return {static_cast<float>(logits[id] - log_z), id};
  };
  PositionLogprobs out;
  out.chosen = logprob(chosen);
  for (int32_t id : wanted) out.token_ids.push_back(logprob(id));
  if (top_num > 0) {
    std::vector<Candidate> order(logits.size());
    for (size_t i = 0; i < logits.size(); ++i) order[i] = {logits[i], static_cast<int32_t>(i)};
    const size_t count = std::min<size_t>(top_num, order.size());
    std::partial_sort(order.begin(), order.begin() + count, order.end(), heavier);
    for (size_t i = 0; i < count; ++i) out.top.push_back(logprob(order[i].second));
  }
  return out;
}

}  // namespace warpweave
