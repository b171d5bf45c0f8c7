#include "sample/sampler.h"

#include <atomic>

#include "ops/elementwise.h"

namespace warpweave {

void Sampler::sample_one(const SampleRow& row, std::span<const float> logits, RowScratch& scratch,
                         SampledRow& out) const {
  const SamplingParams& params = row.state->params();
  std::span<const float> final_logits = logits;
  if (row.state->needs_logit_edit()) {
    scratch.edited.assign(logits.begin(), logits.end());
    row.state->edit_logits(scratch.edited);
    final_logits = scratch.edited;
  }
  out.token_id = params.temperature == 0
                     ? static_cast<int32_t>(argmax(final_logits.data(), final_logits.size()))
                     : sample_row(final_logits, params, uniform_draw(row.state->seed(), row.position),
                                  scratch);
  if (row.want_logprobs) {
    out.logprobs = row_logprobs(logits, out.token_id, row.top_logprobs_num, row.logprob_ids);
  }
  row.state->add_output(out.token_id);
}

void Sampler::sample(std::span<const SampleRow> rows, std::span<const float> logits, int vocab_size,
                     std::span<SampledRow> out) {
  const auto one = [&](size_t i, RowScratch& scratch) {
    sample_one(rows[i], logits.subspan(size_t(rows[i].logits_row) * vocab_size, vocab_size), scratch,
               out[i]);
  };
  if (rows.size() == 1 || team_.size() == 1) {
    for (size_t i = 0; i < rows.size(); ++i) one(i, scratch_[0]);
    return;
  }
  std::atomic<size_t> next{0};
  team_.run([&](int member, int) {
    for (size_t i = next++; i < rows.size(); i = next++) one(i, scratch_[member]);
  });
}

}  // namespace warpweave
