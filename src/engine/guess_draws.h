// For tests of sampling through guesses, on the host and on GPUs: a made-up model of a few tokens, guesses of its
// texts, and how far counted draws are from its probabilities (chi-square).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "batch/proposal.h"
#include "sample/row_sampler.h"

namespace warpweave::guess_draws {

inline constexpr int kVocab = 6;

// The model: the logits after a token.
inline std::vector<float> logits_after(int32_t token) {
  std::vector<float> out(kVocab);
  for (int i = 0; i < kVocab; ++i) out[i] = std::sin(static_cast<float>(1 + i * 3 + token * 7)) * 1.5f;
  return out;
}

inline std::vector<double> probabilities_after(int32_t token) {
  std::vector<double> out;
  double sum = 0;
  for (const float logit : logits_after(token)) sum += out.emplace_back(std::exp(logit));
  for (double& p : out) p /= sum;
  return out;
}

struct Plan {
  Proposal proposal;
  std::function<int32_t(int node)> shown = {};  // the token whose logits stand in a node's row
  AcceptThresholds accept = {};
};

inline Proposal chain() { return {.tokens = {2, 4, 1}, .parents = {}}; }
inline Proposal tree() { return {.tokens = {2, 3, 5, 4, 1, 0}, .parents = {0, 0, 0, 1, 1, 2}}; }

// The first two tokens after token 0, of many seeds.
using Counts = std::array<std::array<int, kVocab>, kVocab>;

// Of `draws` pairs of tokens: 35 degrees of freedom; 66.6 is exceeded once in a thousand times.
inline constexpr double kOnceInAThousand = 66.6;
inline double chi_square(const Counts& counts, int draws) {
  double sum = 0;
  const std::vector<double> first = probabilities_after(0);
  for (int a = 0; a < kVocab; ++a) {
    const std::vector<double> second = probabilities_after(a);
    for (int b = 0; b < kVocab; ++b) {
      const double expected = draws * first[a] * second[b];
      sum += (counts[a][b] - expected) * (counts[a][b] - expected) / expected;
    }
  }
  return sum;
}

}  // namespace warpweave::guess_draws
