#include "spec/host_draft_model.h"

#include <algorithm>
#include <cstring>

namespace warpweave {

Status HostDraftModel::copy_pages(std::span<const PageCopy> copies) {
  const int64_t page_size = parts_.cache->shape().page_size;
  for (const PageCopy& copy : copies) {
    parts_.cache->copy_tokens(copy.src_page * page_size, copy.dst_page * page_size, copy.num_tokens);
  }
  return {};
}

void HostDraftModel::fill_batch(const DraftPass& pass, const BatchBuilder& step, ForwardBatch& batch) {
  input_ids_ = pass.input_ids;
  for (int32_t& id : input_ids_) {
    if (id < 0) id = choices_[-1 - id].token;
  }
  page_table_.clear();
  const int stride = step.batch().page_table_stride;
  for (const int32_t row : pass.requests) {
    const int32_t* const pages = step.pages_of(row, parts_.cache_group);
    page_table_.insert(page_table_.end(), pages, pages + stride);
  }
  batch.num_reqs = pass.num_requests();
  batch.num_tokens = pass.rows();
  batch.page_size = parts_.cache->shape().page_size;
  batch.input_ids = input_ids_;
  batch.positions = pass.positions;
  batch.kv_slots = pass.kv_slots;
  batch.q_indptr = pass.q_indptr;
  batch.kv_lens = pass.kv_lens;
  batch.page_table = page_table_;
  batch.page_table_stride = stride;
  batch.logits_rows = pass.logits_rows;
  batch.max_q_len = pass.max_q_len();
  batch.max_kv_len = *std::max_element(pass.kv_lens.begin(), pass.kv_lens.end());
  batch.mode = batch.max_q_len == 1 ? ForwardMode::decode : ForwardMode::draft_extend;
  batch.tree_mask = pass.mask;
  batch.tree_mask_words = pass.mask_words();
}

// x = fc([embedding of the token | hidden state]).
void HostDraftModel::embed_with_features(const DraftPass& pass) {
  const int64_t hidden = hidden_size(), rows = pass.rows();
  embedded_.resize(rows * hidden);
  target_.embed_ids(input_ids_, embedded_.data(), team_);
  std::vector<float>& both = logits_;  // free now
  if (both.size() < static_cast<size_t>(rows * 2 * hidden)) both.resize(rows * 2 * hidden);
  const float* const features = pass.reads_target ? target_.hidden() : kept_.data();
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(both.data() + r * 2 * hidden, embedded_.data() + r * hidden, hidden * sizeof(float));
    std::memcpy(both.data() + (r * 2 + 1) * hidden, features + pass.features[r] * hidden, hidden * sizeof(float));
  }
  x_.resize(rows * hidden);
  parts_.model->fc().forward({.data = both.data(), .rows = rows, .row_stride = 2 * hidden},
                    {.data = x_.data(), .row_stride = hidden}, team_);
}

void HostDraftModel::keep_rows(const DraftPass& pass) {
  const int64_t hidden = hidden_size();
  for (size_t i = 0; i < pass.keep.size(); ++i) {
    const size_t needed = (pass.keep[i] + 1) * hidden;
    if (kept_.size() < needed) kept_.resize(needed);
    std::memcpy(kept_.data() + pass.keep[i] * hidden, parts_.model->last_rows() + static_cast<int64_t>(i) * hidden,
                hidden * sizeof(float));
  }
}

Status HostDraftModel::run(const DraftPass& pass, const BatchBuilder& step) {
  if (taken_) choices_.clear();
  taken_ = false;
  ForwardBatch batch;
  fill_batch(pass, step, batch);
  WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata(batch));
  if (eagle_) embed_with_features(pass);
  WW_RETURN_IF_ERROR(parts_.model->forward_from(eagle_ ? x_.data() : nullptr, batch, *parts_.cache, *parts_.attention, team_));
  const auto wanted = static_cast<int64_t>(pass.logits_rows.size());
  if (wanted == 0) return {};
  const size_t vocab = parts_.tokens.empty() ? target_.config().vocab_size : parts_.tokens.size();
  if (logits_.size() < wanted * vocab) logits_.resize(wanted * vocab);
  if (eagle_) {
    target_.head_logits(parts_.model->last_rows(), wanted, logits_.data(), team_, parts_.tokens.empty() ? nullptr : &parts_.head);
    keep_rows(pass);
  } else {
    parts_.model->logits(0, wanted, {.values = logits_.data()}, team_);
  }
  for (int64_t row = 0; row < wanted; ++row) {
    top_choices({logits_.data() + row * vocab, vocab}, pass.topk, row_choices_);
    row_choices_.resize(pass.topk, {0, kImpossibleChoice});  // where the vocabulary is smaller
    if (!parts_.tokens.empty()) {
      for (DraftChoice& choice : row_choices_) choice.token = parts_.tokens[choice.token];
    }
    choices_.insert(choices_.end(), row_choices_.begin(), row_choices_.end());
  }
  return {};
}

Result<std::span<const DraftChoice>> HostDraftModel::take_choices() {
  if (taken_) choices_.clear();
  taken_ = true;
  return std::span<const DraftChoice>(choices_);
}

}  // namespace warpweave
