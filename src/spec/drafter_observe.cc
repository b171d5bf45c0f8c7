// What a draft model is shown of a step that is done, and what it makes up for of texts that it did not follow.
#include <algorithm>

#include "spec/drafter.h"

namespace warpweave {

Status Drafter::observe(const BatchBuilder& step, std::span<const DraftRow> rows,
                        std::span<const ObservedRow> observed) {
  WW_RETURN_IF_ERROR(take_first_levels());
  pass_.clear();
  pass_.reads_target = true;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto index = static_cast<int>(i);
    if (!options_.eagle && !rows[i].prefill) {
      observe_standalone(step, rows[i], observed[i], index);
    } else if (rows[i].follows && (options_.eagle || may_go_on(step, rows[i], index))) {
      observe_row(step, rows[i], observed[i], index);
    } else {
      const int count = rows[i].prefill ? rows[i].num_tokens : static_cast<int>(observed[i].sampled.size());
      mark(step, index, rows[i].start, rows[i].start + count, false);
      if (knows_gaps_ && rows[i].prefill) rows[i].state->kv_len = 0;
    }
  }
  WW_RETURN_IF_ERROR(run(step));
  if (!options_.eagle || !model_->chooses_at_once()) return {};
  WW_RETURN_IF_ERROR(take_first_levels());
  for (const DraftRow& row : rows) {
    const Slot* const own = slot_of(*row.state);
    row.state->first_logprob = own != nullptr && !own->first.empty() ? own->first[0].logprob : 1;
  }
  return {};
}

// Of a model of its own that decodes: guesses that came true it has read, but for the last.
void Drafter::observe_standalone(const BatchBuilder& step, const DraftRow& row, const ObservedRow& observed,
                                 int index) {
  DraftState& state = *row.state;
  state.kv_len = std::min(state.kv_len, row.start + static_cast<int>(std::max<size_t>(observed.nodes.size(), 1)));
  mark(step, index, row.start, state.kv_len, true);
  mark(step, index, std::max(row.start, state.kv_len), row.start + static_cast<int>(observed.sampled.size()), false);
}

// Whether a model of its own has read all that stands before a prompt's row; else it reads all of it before it drafts.
bool Drafter::may_go_on(const BatchBuilder& step, const DraftRow& row, int index) const {
  if (!knows_gaps_) return true;
  const int page_size = model_->page_size();
  const int32_t* const pages = step.pages_of(index, cache_group_);
  return pages_.begin_before(pages, row.start) == 0 &&
         (row.start % page_size == 0 || pages_.tokens(pages[row.start / page_size]) >= row.start % page_size);
}

std::span<const int32_t> Drafter::observe_ahead(std::span<const DraftRow> rows) {
  keep_.clear();
  const bool possible = options_.eagle && options_.topk == 1 && num_choices_ == 0 &&
                        std::all_of(rows.begin(), rows.end(), [](const DraftRow& row) {
                          return row.follows && !row.prefill && row.state->kv_len >= row.start;
                        });
  if (!possible) return keep_;
  observed_.clear();
  for (const DraftRow& row : rows) {
    keep_.push_back(use_slot(*row.state));
    slots_[row.state->slot].choice = num_choices_++;
    observed_.push_back(*row.state);
  }
  return keep_;
}

void Drafter::observed_ahead(std::span<const DraftRow> rows, std::span<const ObservedRow> observed) {
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].state->kv_len = rows[i].start + static_cast<int>(observed[i].sampled.size());
  }
}

// Rows of a few tokens that were not observed when they were new: beside its token each reads the hidden state that is
// at hand, the step's. What they give is close to what it would have been, and there is no gap in the text.
void Drafter::catch_up(const BatchBuilder& step, const DraftRow& row, int index, int feature) {
  const int missing = row.start - row.state->kv_len;
  const int most = std::min(kMostCaughtUp, model_->max_rows() - pass_.rows() - step.batch().num_tokens);
  if (missing <= 0 || missing > most || (knows_gaps_ && row.state->kv_len == 0)) return;
  read_missing(step, row, index, {row.state->kv_len, feature});
}

void Drafter::read_missing(const BatchBuilder& step, const DraftRow& row, int index, Missing missing) {
  if (row.start >= row.known_tokens()) return;
  for (int position = missing.begin; position < row.start; ++position) {
    add_row(step, index, position, row.token(position + 1));
    pass_.features.push_back(missing.feature);
  }
  mark(step, index, missing.begin, row.start, true);
}

// Behind a gap, or pages that it did not follow, a head sees nothing before the page at hand, of which it reads what is
// missing. Of what stands further back its next guesses depend little.
void Drafter::begin_anew(const BatchBuilder& step, const DraftRow& row, int index, int feature) {
  const int page_size = model_->page_size(), within = row.start % page_size;
  const int32_t* const pages = step.pages_of(index, cache_group_);
  const int there = within > 0 ? std::min(pages_.tokens(pages[row.start / page_size]), within) : 0;
  read_missing(step, row, index, {row.start - within + there, feature});
  row.state->kv_begin = pages_.begin_before(pages, row.start);
}

// The rows of a request whose K/V can be computed now. EAGLE's need the token after theirs, which is known of all but
// the last row of a prompt that nothing was sampled for.
void Drafter::observe_row(const BatchBuilder& step, const DraftRow& row, const ObservedRow& observed, int index) {
  DraftState& state = *row.state;
  const int first = step.batch().q_indptr[index];
  const int begin = pass_.rows();
  if (options_.eagle && !row.prefill) catch_up(step, row, index, first);
  const bool goes_on = !row.prefill && (pass_.rows() > begin || state.kv_len == row.start);
  if (options_.eagle && knows_gaps_ && !goes_on) begin_anew(step, row, index, first);
  int position = row.start;
  const int rows = row.prefill ? row.num_tokens : static_cast<int>(observed.sampled.size());
  for (int k = 0; k < rows; ++k, ++position) {
    if (!options_.eagle) {
      add_row(step, index, position, row.token(position));
      continue;
    }
    const int beyond = position + 1 - row.known_tokens();  // of the next token, behind what was known
    if (beyond >= static_cast<int>(observed.sampled.size())) break;
    // A row that failed has a negative token; what is computed for it is never used.
    add_row(step, index, position, beyond < 0 ? row.token(position + 1) : std::max(observed.sampled[beyond], 0));
    pass_.features.push_back(first + (row.prefill || observed.nodes.empty() ? k : observed.nodes[k]));
  }
  mark(step, index, row.start, position, true);
  mark(step, index, position, row.start + rows, false);
  state.kv_len = position;
  if (Slot* const own = slot_of(state)) {
    own->first.clear();
    own->choice = -1;
  }
  if (pass_.rows() == begin) return;
  end_request(row, index, position);
  if (!options_.eagle || observed.sampled.empty()) return;
  pass_.keep.push_back(use_slot(state));
  if (options_.topk == 1) slots_[state.slot].choice = static_cast<int>(pass_.logits_rows.size());
  pass_.logits_rows.push_back(pass_.rows() - 1);
  observed_.push_back(state);
}

}  // namespace warpweave
