// Which token a row gets where guesses of it may be kept although another one was drawn (AcceptThresholds of
// row_sampler.h): one rule for the host's sampler and the GPU's kernel, which calls it as a constexpr function.
#pragma once

#include <cstdint>

namespace warpweave {

// The guesses of a row and its thresholds.
struct KeptGuessRule {
  const int32_t* tokens = nullptr;  // [count]
  int count = 0;
  float single = 1, acc = 1;  // AcceptThresholds
  double draw = 0;            // RowGuesses::draw
};

// `drawn`, or the guess that takes its place. weight_of(id), 0 for what may not be drawn, sums up to `total`.
template <typename WeightOf>
constexpr int32_t drawn_or_guess(int32_t drawn, const KeptGuessRule& rule, double total, const WeightOf& weight_of) {
  for (int i = 0; i < rule.count; ++i) {
    if (rule.tokens[i] == drawn) return drawn;
  }
  double all = 0;
  for (int i = 0; i < rule.count; ++i) {
    const double probability = weight_of(rule.tokens[i]) / total;
    if (probability > 0 && probability >= rule.single) return rule.tokens[i];
    all += probability;
  }
  if (all <= 0 || all >= 1) return drawn;
  const double wanted = all / rule.acc;
  const double more = ((wanted < 1 ? wanted : 1) - all) / (1 - all);  // for no guess was drawn
  if (rule.draw >= more) return drawn;
  double left = rule.draw / more * all;
  int32_t kept = drawn;
  for (int i = 0; i < rule.count && left >= 0; ++i) {
    const double probability = weight_of(rule.tokens[i]) / total;
    if (probability <= 0) continue;
    kept = rule.tokens[i];
    left -= probability;
  }
  return kept;
}

}  // namespace warpweave
