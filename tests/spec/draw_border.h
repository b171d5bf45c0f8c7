// Whether two tokens that were drawn for the same place lie on either side of a border that rounding moves.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ask_tale.h"
#include "sample/row_sampler.h"
#include "sample/sampler_state.h"

namespace warpweave::speculation {

// A draw picks a token by the sum of the probabilities of lower ids. Steps of other shapes add up logits in another
// order, which moves such sums by less than this (DrawBorders.MoveByLessThanRounding).
inline constexpr double kDrawRounding = 1e-5;

// The log-probabilities of all ids at each place that `request` writes, asked alone.
inline std::vector<std::vector<float>> rows_of(ServedModel& served, GenerateRequest request, Ids* written = nullptr) {
  request.return_logprob = true;
  request.top_logprobs_num = 0;
  request.logprob_start_len = -1;
  request.wait_for_prefix_of.clear();
  request.token_ids_logprob.resize(served.engine->info().vocab_size);
  std::iota(request.token_ids_logprob.begin(), request.token_ids_logprob.end(), 0);
  struct Rows {
    Ids ids;
    std::vector<std::vector<float>> values;
    FinishReason finish;
  };
  const auto answers = collect_answers<Rows>(*served.engine, {request}, [](Rows& rows, const OutputDelta& delta) {
    rows.ids.insert(rows.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    for (const PositionLogprobs& p : delta.output_logprobs) {
      std::vector<float>& row = rows.values.emplace_back();
      for (const TokenLogprob& of : p.token_ids) row.push_back(of.logprob);
    }
    if (delta.finish) rows.finish = *delta.finish;
  });
  if (written != nullptr) *written = answers[0].ids;
  return answers[0].values;
}

// What is drawn at place `k` of the answer, and what were, were the draw less or more by kDrawRounding. Of requests whose
// edits add to logits, for what is known of those is their differences.
inline Ids drawn_near(ServedModel& served, const GenerateRequest& request, size_t k) {
  if (request.sampling.repetition_penalty != 1) return {};
  Ids written;
  std::vector<std::vector<float>> rows = rows_of(served, request, &written);
  if (k >= rows.size()) return {};
  std::vector<int32_t> end_ids = request.sampling.stop_token_ids;
  const std::vector<int32_t>& eos_ids = served.engine->info().eos_token_ids;
  if (!request.sampling.ignore_eos) end_ids.insert(end_ids.end(), eos_ids.begin(), eos_ids.end());
  SamplerState state(request, std::move(end_ids), 0);
  if (request.sampling.grammar) state.set_grammar(std::make_unique<GrammarMask>(request.sampling.grammar, nullptr));
  state.reset_output(std::span(written).first(k));
  state.edit_logits(rows[k]);
  const double draw = uniform_draw(state.seed(), request.input_ids.size() + k);
  RowScratch scratch;
  Ids near;
  for (const double moved : {draw - kDrawRounding, draw, draw + kDrawRounding}) {
    near.push_back(sample_row(rows[k], request.sampling, std::clamp(moved, 0.0, 1 - kDrawRounding), scratch));
  }
  return near;
}

// Whether both answers are right: where they part, each has a token that rounding can bring.
inline bool part_at_a_border(ServedModel& served, const GenerateRequest& request, const Ids& got, const Ids& expected) {
  const auto [mine, theirs] = std::mismatch(got.begin(), got.end(), expected.begin(), expected.end());
  if (mine == got.end() || theirs == expected.end()) return false;
  const Ids near = drawn_near(served, request, static_cast<size_t>(mine - got.begin()));
  const auto can_be = [&](int32_t token) { return std::find(near.begin(), near.end(), token) != near.end(); };
  return can_be(*mine) && can_be(*theirs);
}

// How far the sums of probabilities of lower ids, tempered, lie apart in two rows: the most of all ids.
inline double most_moved(const std::vector<float>& a, const std::vector<float>& b, float temperature) {
  const auto sums = [&](const std::vector<float>& row) {
    std::vector<double> out;
    double sum = 0;
    for (const float logprob : row) out.push_back(sum += std::exp(static_cast<double>(logprob) / temperature));
    for (double& value : out) value /= sum;
    return out;
  };
  const std::vector<double> of_a = sums(a), of_b = sums(b);
  double most = 0;
  for (size_t i = 0; i < of_a.size(); ++i) most = std::max(most, std::abs(of_a[i] - of_b[i]));
  return most;
}

}  // namespace warpweave::speculation
