// Sampling of one row of logits. Pure functions: the same row and draw give the same token.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "warpweave/engine.h"

namespace warpweave {

// What takes a token's place where there is none. The GPU's kernel gives kNoToken as well.
inline constexpr int32_t kNoToken = -1;         // the model's logits have a NaN, or are all -inf
inline constexpr int32_t kNoAllowedToken = -2;  // the request's own masks leave none

// Whether every logit is a number (or an infinity).
bool has_no_nan(std::span<const float> logits);

// A number in [0, 1) that depends only on (seed, position).
double uniform_draw(uint64_t seed, uint64_t position);

// Scratch of one worker, reused from row to row so that steps do not allocate.
struct RowScratch {
  std::vector<float> edited;                        // a copy of the row when it must be edited
  std::vector<float> weights;                       // exp((logit - max) / temperature)
  std::vector<std::pair<float, int32_t>> candidates;
};

// How likely a guess must be to be kept although another token was drawn (--speculative-accept-threshold-*): in place
// of that token comes a guess whose probability is `single` or more, or else, with the probability min(1, all / acc)
// that some guess is kept, `all` being that of all guesses of the row, one of them in proportion to theirs. At 1 and 1
// the draw alone decides, and the distribution is the model's. Probabilities are those that the draw is made by, so
// greedy rows keep no other token than their own.
struct AcceptThresholds {
  float single = 1;  // above 0, up to 1; so is the other
  float acc = 1;
  bool lossless() const { return single >= 1 && acc >= 1; }
};

// The guesses of how the text goes on behind a row.
struct RowGuesses {
  std::span<const int32_t> tokens;
  AcceptThresholds accept;
  double draw = 0;  // in [0, 1), of its own: what decides beside the row's draw
};

// The draw of RowGuesses, of the same row as uniform_draw(seed, position).
inline double acceptance_draw(uint64_t seed, uint64_t position) { return uniform_draw(~seed, position); }

// Picks a token: temperature, then top_k, top_p and min_p in the field's order, then one draw, and what `guesses`
// change of it. Ties go to the lower id. A row with a NaN, or of only -inf, gives kNoToken: the request fails.
int32_t sample_row(std::span<const float> logits, const SamplingParams& params, double draw, RowScratch& scratch,
                   const RowGuesses& guesses = {});

// Log-probabilities of a raw row: the chosen token's, the `top_num` best, those of `wanted`.
// Ids outside the vocabulary get -inf.
PositionLogprobs row_logprobs(std::span<const float> logits, int32_t chosen, int top_num,
                              std::span<const int32_t> wanted);

}  // namespace warpweave
