#include "spec/host_draft_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/elementwise.h"

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
  for (int r = 0; r < pass.num_requests(); ++r) {
    const int32_t* const pages = step.pages_of(pass.requests[r], parts_.cache_group);
    page_table_.insert(page_table_.end(), pages + pass.first_pages[r], pages + stride);
    page_table_.resize(static_cast<size_t>(r + 1) * stride);
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

void HostDraftModel::norm_rows(const RowNorm& norm, float* rows, int64_t count) {
  if (norm.weight.empty()) return;
  const NormSpec& rule = parts_.model->spec().norm;
  rms_norm({.x = rows, .rows = count, .cols = hidden_size(), .x_stride = hidden_size(), .weight = norm.weight.data(),
            .weight_offset = rule.weight_offset, .eps = rule.eps, .out = rows, .out_stride = hidden_size()},
           team_);
}

// The rows that the head's layer begins with (model/draft_head.h).
void HostDraftModel::make_head_rows(const DraftPass& pass) {
  const int64_t hidden = hidden_size(), rows = pass.rows();
  const int64_t width = pass.reads_target ? target_.hidden_width() : hidden;
  const float* const from = pass.reads_target ? target_.hidden() : kept_.data();
  embedded_.resize(rows * hidden);
  target_.embed_ids(input_ids_, embedded_.data(), team_);
  features_.resize(rows * width);
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(features_.data() + r * width, from + pass.features[r] * width, width * sizeof(float));
  }
  x_.resize(rows * hidden);
  if (parts_.kind != DraftHeadKind::eagle3) return join_embeddings(features_.data(), rows);
  parts_.model->bring_embeddings(embedded_.data());
  if (!pass.reads_target) return x_.swap(features_);
  parts_.model->fc().forward({.data = features_.data(), .rows = rows, .row_stride = width},
                             {.data = x_.data(), .row_stride = hidden}, team_);
}

// x = fc [embedding | hidden state], each through its norm if it has one.
void HostDraftModel::join_embeddings(const float* features, int64_t rows) {
  const int64_t hidden = hidden_size();
  const DraftNorms& norms = parts_.model->draft_norms();
  norm_rows(norms.embedding, embedded_.data(), rows);
  norm_rows(norms.hidden, features_.data(), rows);
  both_.resize(rows * 2 * hidden);
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(both_.data() + r * 2 * hidden, embedded_.data() + r * hidden, hidden * sizeof(float));
    std::memcpy(both_.data() + (r * 2 + 1) * hidden, features + r * hidden, hidden * sizeof(float));
  }
  parts_.model->fc().forward({.data = both_.data(), .rows = rows, .row_stride = 2 * hidden},
                             {.data = x_.data(), .row_stride = hidden}, team_);
}

void HostDraftModel::keep_rows(const DraftPass& pass, const float* states) {
  const int64_t hidden = hidden_size();
  for (size_t i = 0; i < pass.keep.size(); ++i) {
    const size_t needed = (pass.keep[i] + 1) * hidden;
    if (kept_.size() < needed) kept_.resize(needed);
    std::memcpy(kept_.data() + pass.keep[i] * hidden, states + static_cast<int64_t>(i) * hidden,
                hidden * sizeof(float));
  }
}

// Logits of the last `wanted` rows, and how many columns they have. A head's hidden states are then in states_.
int64_t HostDraftModel::head_logits(int64_t wanted, RowBest* best) {
  const bool own = parts_.kind == DraftHeadKind::eagle3 && parts_.model->has_head();
  const bool shared = parts_.kind.has_value() && !own;
  int64_t vocab = own ? parts_.model->config().vocab_size : target_.config().vocab_size;
  if (shared && !parts_.tokens.empty()) vocab = static_cast<int64_t>(parts_.tokens.size());
  if (logits_.size() < static_cast<size_t>(wanted * vocab)) logits_.resize(wanted * vocab);
  if (!shared) {
    parts_.model->logits(0, wanted, {.values = logits_.data(), .best = best}, team_);
    return vocab;
  }
  states_.resize(wanted * hidden_size());
  parts_.model->states(0, wanted, states_.data(), team_);
  target_.head_logits(states_.data(), wanted, {.values = logits_.data(), .best = best}, team_,
                      parts_.head.empty() ? nullptr : &parts_.head);
  return vocab;
}

// Adds a row's choices. Of a single one the place is known.
void HostDraftModel::choose(std::span<const float> logits, int topk, const RowBest& best) {
  const float total = topk == 1 ? log_sum_exp(logits.data(), static_cast<int64_t>(logits.size())) : NAN;
  if (std::isfinite(total)) {
    row_choices_.assign(1, {best.column, logits[best.column] - total});
  } else {
    top_choices(logits, topk, row_choices_);
    row_choices_.resize(topk, {0, kImpossibleChoice});  // where the vocabulary is smaller
  }
  if (!parts_.tokens.empty()) {
    for (DraftChoice& choice : row_choices_) choice.token = parts_.tokens[choice.token];
  }
  choices_.insert(choices_.end(), row_choices_.begin(), row_choices_.end());
}

Status HostDraftModel::run(const DraftPass& pass, const BatchBuilder& step) {
  if (taken_) choices_.clear();
  taken_ = false;
  ForwardBatch batch;
  fill_batch(pass, step, batch);
  WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata(batch));
  if (parts_.kind) make_head_rows(pass);
  WW_RETURN_IF_ERROR(
      parts_.model->forward_from(parts_.kind ? x_.data() : nullptr, batch, *parts_.cache, *parts_.attention, team_));
  const auto wanted = static_cast<int64_t>(pass.logits_rows.size());
  if (wanted == 0) return {};
  best_.resize(wanted);
  const int64_t vocab = head_logits(wanted, pass.topk == 1 ? best_.data() : nullptr);
  // An EAGLE3 head goes on from its rows as they are before their norm, the others from what the head reads.
  if (parts_.kind) keep_rows(pass, parts_.kind == DraftHeadKind::eagle3 ? parts_.model->last_rows() : states_.data());
  for (int64_t row = 0; row < wanted; ++row) {
    choose({logits_.data() + row * vocab, static_cast<size_t>(vocab)}, pass.topk, best_[row]);
  }
  return {};
}

Result<std::span<const DraftChoice>> HostDraftModel::take_choices() {
  if (taken_) choices_.clear();
  taken_ = true;
  return std::span<const DraftChoice>(choices_);
}

}  // namespace warpweave
