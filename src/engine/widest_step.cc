#include "engine/widest_step.h"

#include <algorithm>
#include <numeric>

namespace warpweave {

int WidestStep::logits_block_rows(const LogitsHead& head) {
  const int64_t fitting = kBlockBytes / (int64_t{sizeof(float)} * std::max(1, head.vocab_size));
  const int64_t most = std::clamp<int64_t>(fitting, kLeastBlockRows, kMostBlockRows);
  const auto bytes = static_cast<int64_t>(std::max(1.0, head.weight_bytes));  // blocks' scales count for nothing
  return static_cast<int>(std::min(most, kBlockRowsPerThreadAndByte * std::max(2, head.threads) * bytes));
}

WidestStep WidestStep::of(const SchedulerConfig& config, const BatchCache& cache, const LogitsHead& head) {
  WidestStep out;
  out.cache = cache;
  out.num_pages = config.num_pages;
  out.state_slots = config.state_slots;
  out.request_rows = config.context_len;
  int64_t rows = std::min(Scheduler::max_tokens_per_step(config), int64_t{kMostRows});
  if (out.state_slots > 0) rows = std::min(rows, int64_t{out.state_slots} * out.request_rows);
  out.rows = static_cast<int>(rows);
  out.logits_rows = static_cast<int>(std::min<int64_t>(logits_block_rows(head), rows));
  return out;
}

WidestBatch::WidestBatch(const WidestStep& step)
    : ids_(step.rows, 0), kv_slots_(step.rows, -1), q_indptr_(1, 0), rows_(step.rows) {
  std::iota(rows_.begin(), rows_.end(), 0);
  for (int first = 0; first < step.rows; first += step.request_rows) {
    const int tokens = std::min(step.request_rows, step.rows - first);
    for (int position = 0; position < tokens; ++position) positions_.push_back(position);
    q_indptr_.push_back(first + tokens);
    kv_lens_.push_back(tokens);
    if (step.state_slots > 0) state_slots_.push_back(static_cast<int32_t>(state_slots_.size()));
    batch_.max_q_len = batch_.max_kv_len = std::max(batch_.max_q_len, tokens);
  }
  const int page_size = step.cache.page_size;
  batch_.mode = ForwardMode::extend;
  batch_.num_reqs = static_cast<int>(kv_lens_.size());
  batch_.num_tokens = step.rows;
  batch_.page_size = page_size;
  batch_.page_table_stride = (batch_.max_kv_len + page_size - 1) / page_size;
  for (int i = 0; i < batch_.num_reqs * batch_.page_table_stride; ++i) page_table_.push_back(i % step.num_pages);
  batch_.input_ids = ids_;
  batch_.positions = positions_;
  batch_.kv_slots = kv_slots_;
  batch_.q_indptr = q_indptr_;
  batch_.kv_lens = kv_lens_;
  batch_.page_table = page_table_;
  batch_.state_slots = state_slots_;
  batch_.logits_rows = rows_;
  batch_.causal = step.cache.causal;
  if (step.cache.num_groups > 1) groups_.assign(step.cache.num_groups, CacheGroupArrays{kv_slots_, page_table_});
  batch_.groups = groups_;
  if (step.adapter != nullptr) adapters_.assign(batch_.num_reqs, step.adapter);
  batch_.adapters = adapters_;
}

}  // namespace warpweave
