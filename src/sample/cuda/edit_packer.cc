#include "sample/cuda/edit_packer.h"

#include <algorithm>

namespace warpweave::gpu {

namespace {
constexpr int kRowsAtATime = 4;  // of a thread: together they take about as long as to wake it
}

SampleRowParams sample_params(const SampleRow& row, int logits_row, int depth) {
  SampleRowParams out;
  const SamplingParams& params = row.state->params();
  out.logits_row = logits_row;
  out.temperature = params.temperature;
  out.top_k = params.top_k;
  out.top_p = params.top_p;
  out.min_p = params.min_p;
  const uint64_t seed = row.state->seed(), position = row.position + depth;
  if (params.temperature > 0) out.draw = uniform_draw(seed, position);
  if (row.accept.lossless()) return out;
  out.accept_draw = acceptance_draw(seed, position);
  out.accept_single = row.accept.single;
  out.accept_acc = row.accept.acc;
  return out;
}

void EditPacker::pack(std::span<const EditedSample> rows, int vocab_size, std::span<uint32_t> masks, ThreadTeam& team) {
  rows_.assign(rows.size(), {});
  params_.resize(rows.size());
  prepared_.resize(std::max(prepared_.size(), rows.size()));
  edits_.clear();
  wanted_.clear();
  num_masks_ = num_scores_ = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].row.state->has_mask()) rows_[i].mask = num_masks_++;
  }
  const size_t words = (static_cast<size_t>(vocab_size) + 31) / 32;
  team.parallel_for(static_cast<int64_t>(rows.size()), kRowsAtATime, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const SamplerState& state = *rows[i].row.state;
      Prepared& prepared = prepared_[i];
      state.collect_edits(vocab_size, prepared.edits);
      prepared.none_allowed = false;
      if (rows_[i].mask < 0) continue;
      const std::span<uint32_t> mask = masks.subspan(rows_[i].mask * words, words);
      state.fill_mask(mask, vocab_size);
      prepared.none_allowed = std::ranges::all_of(mask, [](uint32_t word) { return word == 0; });
    }
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampleRow& asked = rows[i].row;
    EditedRow& row = rows_[i];
    row.logits_row = asked.logits_row;
    row.token_slot = rows[i].slot;
    params_[i] = sample_params(asked, asked.logits_row, 0);
    params_[i].token_slot = rows[i].slot;
    add_edits(prepared_[i].edits, row);
    row.wanted_begin = row.wanted_end = static_cast<int32_t>(wanted_.size());
    if (!asked.want_logprobs) continue;
    row.top_num = std::clamp(asked.top_logprobs_num, 0, vocab_size);
    wanted_.insert(wanted_.end(), asked.logprob_ids.begin(), asked.logprob_ids.end());
    row.wanted_end = static_cast<int32_t>(wanted_.size());
    row.scores = num_scores_;
    num_scores_ += 1 + row.top_num + (row.wanted_end - row.wanted_begin);
  }
}

void EditPacker::add_edits(const SamplerState::Edits& edits, EditedRow& row) {
  int kind = 0;
  for (const SamplerState::Edits::List* list : {&edits.repetition, &edits.minus, &edits.plus}) {
    row.edits[kind++] = static_cast<int32_t>(edits_.size());
    for (const auto& [id, value] : *list) edits_.push_back({id, value});
  }
  row.edits[kind] = static_cast<int32_t>(edits_.size());
}

void EditPacker::unpack(std::span<const TokenScore> scores, std::span<SampledRow> sampled) const {
  for (size_t i = 0; i < rows_.size(); ++i) {
    const EditedRow& row = rows_[i];
    SampledRow& out = sampled[row.token_slot];
    if (out.token_id < 0) {
      if (prepared_[i].none_allowed) out.token_id = kNoAllowedToken;
      continue;
    }
    if (row.top_num < 0) continue;
    const TokenScore* next = scores.data() + row.scores;
    const auto take = [&] {
      const TokenScore& score = *next++;
      return TokenLogprob{score.logprob, score.id};
    };
    out.logprobs.chosen = take();
    for (int k = 0; k < row.top_num; ++k) out.logprobs.top.push_back(take());
    for (int k = row.wanted_begin; k < row.wanted_end; ++k) out.logprobs.token_ids.push_back(take());
  }
}

}  // namespace warpweave::gpu
