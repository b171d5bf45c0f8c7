#include "batch/batch_builder.h"

#include <algorithm>
#include <cassert>

namespace warpweave {

const ForwardBatch& BatchBuilder::build(const Step& step) {
  input_ids_.clear();
  positions_.clear();
  kv_slots_.clear();
  kv_lens_.clear();
  logits_rows_.clear();
  futures_.clear();
  q_indptr_.assign(1, 0);
  sample_rows_.assign(step.num_samples, -1);
  reserve_page_table(step);

  bool any_prefill = false, any_decode = false;
  batch_ = {};
  for (int i = 0; i < static_cast<int>(step.rows.size()); ++i) {
    const StepRow& row = step.rows[i];
    append_tokens(row);
    copy_page_table_row(i, row);
    batch_.max_q_len = std::max(batch_.max_q_len, row.num_tokens);
    batch_.max_kv_len = std::max(batch_.max_kv_len, row.start + row.num_tokens);
    (row.prefill ? any_prefill : any_decode) = true;
  }
  batch_.num_reqs = static_cast<int>(step.rows.size());
  batch_.num_tokens = static_cast<int>(input_ids_.size());
  assert(batch_.num_tokens == step.num_tokens);
  if (batch_.num_reqs == 0) {
    batch_.mode = ForwardMode::idle;
  } else if (batch_.max_q_len == 1) {
    batch_.mode = ForwardMode::decode;
  } else {
    batch_.mode = any_prefill && any_decode ? ForwardMode::mixed : ForwardMode::extend;
  }
  batch_.page_size = page_size_;
  batch_.input_ids = input_ids_;
  batch_.positions = positions_;
  batch_.kv_slots = kv_slots_;
  batch_.q_indptr = q_indptr_;
  batch_.kv_lens = kv_lens_;
  batch_.logits_rows = logits_rows_;
  batch_.page_table = page_table_;
  batch_.page_table_stride = page_table_stride_;
  return batch_;
}

void BatchBuilder::append_tokens(const StepRow& row) {
  const int first = static_cast<int>(input_ids_.size());
  const int end = row.start + row.num_tokens;
  if (row.future_slot >= 0) {
    futures_.push_back({first, row.future_slot});
    input_ids_.push_back(0);
  } else {
    input_ids_.insert(input_ids_.end(), row.input_ids, row.input_ids + row.num_tokens);
  }
  int page = row.start / page_size_, offset = row.start % page_size_;
  for (int position = row.start; position < end; ++position) {
    positions_.push_back(position);
    kv_slots_.push_back(row.pages[page] * page_size_ + offset);
    if (++offset == page_size_) {
      offset = 0;
      ++page;
    }
  }
  for (int i = row.num_tokens - row.num_logits; i < row.num_tokens; ++i) {
    logits_rows_.push_back(first + i);
  }
  if (row.sample_slot >= 0) {
    sample_rows_[row.sample_slot] = static_cast<int32_t>(logits_rows_.size()) - 1;
  }
  q_indptr_.push_back(first + row.num_tokens);
  kv_lens_.push_back(end);
}

void BatchBuilder::reserve_page_table(const Step& step) {
  int pages = 0;
  for (const StepRow& row : step.rows) pages = std::max(pages, row.num_pages);
  if (pages > page_table_stride_) {
    page_table_stride_ = std::max(pages, page_table_stride_ + page_table_stride_ / 2);
    table_rows_.clear();  // the rows move
  }
  if (table_rows_.size() < step.rows.size()) table_rows_.resize(step.rows.size());
  page_table_.resize(table_rows_.size() * page_table_stride_);
}

void BatchBuilder::copy_page_table_row(int index, const StepRow& row) {
  TableRow& known = table_rows_[index];
  const bool same = known.id == row.id && known.pages_version == row.pages_version;
  const int first = same ? std::min(known.num_pages, row.num_pages) : 0;
  std::copy(row.pages + first, row.pages + row.num_pages,
            page_table_.begin() + static_cast<size_t>(index) * page_table_stride_ + first);
  known = {row.id, row.pages_version, row.num_pages};
}

void BatchBuilder::patch_futures(std::span<const int32_t> sampled) {
  for (const FutureToken& future : futures_) {
    // A row that sampled nothing has failed; what its next step computes is thrown away.
    input_ids_[future.token_row] = std::max(sampled[future.sample_slot], 0);
  }
}

}  // namespace warpweave
