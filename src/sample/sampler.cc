#include "sample/sampler.h"

#include <atomic>
#include <limits>

#include "ops/elementwise.h"

namespace warpweave {

namespace {

bool has_token(std::span<const float> logits) {
  const float max = logits[argmax(logits.data(), logits.size())];
  return max > -std::numeric_limits<float>::infinity() && has_no_nan(logits);
}

}  // namespace

void Sampler::sample_one(const SampleRow& row, std::span<const float> logits, RowScratch& scratch,
                         SampledRow& out) const {
  const SamplingParams& params = row.state->params();
  std::span<const float> final_logits = logits;
  if (row.state->needs_logit_edit()) {
    scratch.edited.assign(logits.begin(), logits.end());
    row.state->edit_logits(scratch.edited);
    final_logits = scratch.edited;
  }
  const uint64_t seed = row.state->seed();
  out.token_id = sample_row(final_logits, params, uniform_draw(seed, row.position), scratch,
                            {row.guesses, row.accept, acceptance_draw(seed, row.position)});
  if (out.token_id < 0) {
    if (final_logits.data() == scratch.edited.data() && has_token(logits)) out.token_id = kNoAllowedToken;
    return;
  }
  if (row.want_logprobs) {
    out.logprobs = row_logprobs(logits, out.token_id, row.top_logprobs_num, row.logprob_ids);
  }
  row.state->add_output(out.token_id);
}

void Sampler::sample(std::span<const SampleRow> rows, const SampleLogits& logits,
                     std::span<SampledRow> out) {
  reading_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    SamplerState& state = *rows[i].state;
    if (state.params().temperature != 0 || state.needs_logit_edit() || rows[i].want_logprobs) {
      reading_.push_back(i);
      continue;
    }
    const RowBest& best = logits.best[rows[i].logits_row];
    const size_t first = static_cast<size_t>(rows[i].logits_row) * logits.vocab_size;
    if (!(best.value > -std::numeric_limits<float>::infinity()) ||
        !has_no_nan(logits.values.subspan(first, logits.vocab_size))) {
      out[i].token_id = kNoToken;
      continue;
    }
    out[i].token_id = best.column;
    state.add_output(out[i].token_id);
  }
  const auto one = [&](size_t i, RowScratch& scratch) {
    const size_t first = static_cast<size_t>(rows[i].logits_row) * logits.vocab_size;
    sample_one(rows[i], logits.values.subspan(first, logits.vocab_size), scratch, out[i]);
  };
  if (reading_.size() <= 1 || team_.size() == 1) {
    for (size_t i : reading_) one(i, scratch_[0]);
    return;
  }
  std::atomic<size_t> next{0};
  team_.run([&](int member, int) {
    for (size_t n = next++; n < reading_.size(); n = next++) one(reading_[n], scratch_[member]);
  });
}

}  // namespace warpweave
