#include "spec/drafter.h"

#include <algorithm>
#include <cstring>

namespace warpweave {

void Drafter::Pass::clear() {
  for (auto* list : {&input_ids, &positions, &kv_slots, &kv_lens, &logits_rows, &page_table}) list->clear();
  q_indptr.assign(1, 0);
  mask.clear();
  features.clear();
  target_rows.clear();
}

void Drafter::copy_pages(std::span<const PageCopy> copies) {
  const int64_t page_size = parts_.cache->shape().page_size;
  for (const PageCopy& copy : copies) {
    parts_.cache->copy_tokens(copy.src_page * page_size, copy.dst_page * page_size, copy.num_tokens);
  }
}

int32_t Drafter::slot(const BatchBuilder& builder, int row, int position) const {
  const int page_size = parts_.cache->shape().page_size;
  return builder.pages_of(row, parts_.cache_group)[position / page_size] * page_size + position % page_size;
}

void Drafter::add_row(const BatchBuilder& builder, int row, int position, int32_t token) {
  pass_.input_ids.push_back(token);
  pass_.positions.push_back(position);
  pass_.kv_slots.push_back(slot(builder, row, position));
}

void Drafter::add_feature(const float* feature) {
  pass_.features.insert(pass_.features.end(), feature, feature + parts_.model->config().hidden_size);
}

void Drafter::end_request(int kv_len) {
  pass_.q_indptr.push_back(pass_.rows());
  pass_.kv_lens.push_back(kv_len);
}

void Drafter::add_page_row(const BatchBuilder& builder, int row) {
  const int32_t* const pages = builder.pages_of(row, parts_.cache_group);
  pass_.page_table.insert(pass_.page_table.end(), pages, pages + builder.batch().page_table_stride);
}

// x = fc([embedding of the token | hidden state]).
void Drafter::embed_with_features(DecoderModel& target, ThreadTeam& team) {
  const int64_t hidden = parts_.model->config().hidden_size, rows = pass_.rows();
  embedded_.resize(rows * hidden);
  target.embed_ids(pass_.input_ids, embedded_.data(), team);
  std::vector<float>& both = logits_;  // free now
  if (both.size() < static_cast<size_t>(rows * 2 * hidden)) both.resize(rows * 2 * hidden);
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(both.data() + r * 2 * hidden, embedded_.data() + r * hidden, hidden * sizeof(float));
    std::memcpy(both.data() + (r * 2 + 1) * hidden, pass_.features.data() + r * hidden, hidden * sizeof(float));
  }
  x_.resize(rows * hidden);
  parts_.fc.forward({.data = both.data(), .rows = rows, .row_stride = 2 * hidden},
                    {.data = x_.data(), .row_stride = hidden}, team);
}

// Runs the pass and leaves the logits of its logits_rows in logits_.
Status Drafter::run(const BatchBuilder& builder, DecoderModel& target, ThreadTeam& team) {
  ForwardBatch batch;
  batch.num_reqs = static_cast<int>(pass_.kv_lens.size());
  batch.num_tokens = pass_.rows();
  if (batch.num_tokens == 0) return {};
  batch.page_size = parts_.cache->shape().page_size;
  batch.input_ids = pass_.input_ids;
  batch.positions = pass_.positions;
  batch.kv_slots = pass_.kv_slots;
  batch.q_indptr = pass_.q_indptr;
  batch.kv_lens = pass_.kv_lens;
  batch.page_table = pass_.page_table;
  batch.page_table_stride = builder.batch().page_table_stride;
  batch.logits_rows = pass_.logits_rows;
  for (int r = 0; r < batch.num_reqs; ++r) {
    batch.max_q_len = std::max(batch.max_q_len, batch.q_len(r));
    batch.max_kv_len = std::max(batch.max_kv_len, static_cast<int>(batch.kv_lens[r]));
  }
  batch.mode = batch.max_q_len == 1 ? ForwardMode::decode : ForwardMode::draft_extend;
  if (!pass_.mask.empty()) {
    batch.tree_mask = pass_.mask;
    batch.tree_mask_words = (batch.max_q_len + 31) / 32;
  }
  WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata(batch));
  const float* x = nullptr;
  if (options_.eagle) {
    embed_with_features(target, team);
    x = x_.data();
  }
  WW_RETURN_IF_ERROR(parts_.model->forward_from(x, batch, *parts_.cache, *parts_.attention, team));
  const auto wanted = static_cast<int64_t>(pass_.logits_rows.size());
  if (wanted == 0) return {};
  const size_t values = wanted * target.config().vocab_size;
  if (logits_.size() < values) logits_.resize(values);
  if (options_.eagle) {
    target.head_logits(parts_.model->last_rows(), wanted, logits_.data(), team);
  } else {
    parts_.model->logits(0, wanted, {.values = logits_.data()}, team);
  }
  return {};
}

// Of the pass's logits row.
void Drafter::choose(int row, int count, std::vector<DraftChoice>& out) const {
  const size_t vocab = parts_.model->config().vocab_size;
  top_choices({logits_.data() + row * vocab, vocab}, count, out);
}

Status Drafter::draft(const BatchBuilder& builder, std::span<const DraftRow> rows, DecoderModel& target,
                      std::vector<Proposal>& proposals, ThreadTeam& team) {
  growing_.clear();
  for (size_t i = 0; i < proposals.size(); ++i) {
    if (proposals[i].size() == 0) continue;
    Growing& one = growing_.emplace_back();
    one.row = static_cast<int>(i);
    one.nodes = proposals[i].size();
    one.topk = proposals[i].is_chain() ? 1 : options_.topk;
  }
  if (growing_.empty()) return {};
  if (options_.eagle) {
    start_eagle(rows);
  } else {
    WW_RETURN_IF_ERROR(start_standalone(builder, rows, target, team));
  }
  while (add_level(builder, rows)) {
    WW_RETURN_IF_ERROR(run(builder, target, team));
    take_level();
  }
  for (Growing& one : growing_) {
    one.tree.take(one.nodes, proposals[one.row]);
    DraftState& state = *rows[one.row].state;
    // A chain's K/V are where its tokens will stand, but for the last, which was not read; a tree's are not.
    if (!options_.eagle) state.kv_len = rows[one.row].start + (one.topk == 1 ? one.nodes : 1);
  }
  return {};
}

// Reads what it has not seen of each text; its last token gives the first level.
Status Drafter::start_standalone(const BatchBuilder& builder, std::span<const DraftRow> rows, DecoderModel& target,
                                 ThreadTeam& team) {
  pass_.clear();
  for (const Growing& one : growing_) {
    const DraftRow& row = rows[one.row];
    for (int position = std::min(row.state->kv_len, row.start); position <= row.start; ++position) {
      add_row(builder, one.row, position, row.token(position));
    }
    pass_.logits_rows.push_back(pass_.rows() - 1);
    add_page_row(builder, one.row);
    end_request(row.start + 1);
  }
  WW_RETURN_IF_ERROR(run(builder, target, team));
  for (size_t i = 0; i < growing_.size(); ++i) {
    choose(static_cast<int>(i), growing_[i].topk, choices_);
    growing_[i].tree.start(growing_[i].topk, choices_);
  }
  return {};
}

void Drafter::start_eagle(std::span<const DraftRow> rows) {
  for (Growing& one : growing_) {
    const DraftState& state = *rows[one.row].state;
    one.tree.start(one.topk, state.first);
    one.features.assign(std::min<size_t>(one.topk, state.first.size()), state.feature);
  }
}

// The pass of the next level, for requests that have not all levels yet; false: there are none. A tree's earlier nodes
// go along, for a mask relates rows of one pass only; a chain's are behind its newest.
bool Drafter::add_level(const BatchBuilder& builder, std::span<const DraftRow> rows) {
  pass_.clear();
  in_pass_.clear();
  bool any_tree = false;
  for (size_t i = 0; i < growing_.size(); ++i) {
    Growing& one = growing_[i];
    const int steps = one.topk == 1 ? one.nodes : options_.num_steps;
    if (one.tree.levels() >= steps) continue;
    one.tree.expand();
    const std::span<const int> expanded = one.tree.expanded();
    if (one.tree.num_waiting() == 0) continue;  // there was nothing to begin with
    const int first = one.topk == 1 ? static_cast<int>(expanded.size()) - 1 : 0;
    const int base = rows[one.row].start + (options_.eagle ? 0 : 1);
    for (int k = first; k < static_cast<int>(expanded.size()); ++k) {
      const DraftTree::Node& node = one.tree.node(expanded[k]);
      add_row(builder, one.row, base + k, node.token);
      pass_.positions.back() = base + node.depth - 1;
      if (options_.eagle) add_feature(one.features[expanded[k]].data());
    }
    for (int k = one.tree.num_waiting(); k > 0; --k) pass_.logits_rows.push_back(pass_.rows() - k);
    add_page_row(builder, one.row);
    end_request(base + static_cast<int>(expanded.size()));
    in_pass_.push_back(static_cast<int>(i));
    any_tree |= one.topk > 1;
  }
  if (any_tree) build_mask();
  return !in_pass_.empty();
}

// A node sees itself and its ancestors.
void Drafter::build_mask() {
  int longest = 0;
  for (size_t r = 0; r < in_pass_.size(); ++r) longest = std::max(longest, pass_.q_indptr[r + 1] - pass_.q_indptr[r]);
  const int words = (longest + 31) / 32;
  pass_.mask.assign(static_cast<size_t>(pass_.rows()) * words, 0);
  for (size_t r = 0; r < in_pass_.size(); ++r) {
    const Growing& one = growing_[in_pass_[r]];
    const std::span<const int> expanded = one.tree.expanded();
    uint32_t* mask = pass_.mask.data() + static_cast<size_t>(pass_.q_indptr[r]) * words;
    const int rows = pass_.q_indptr[r + 1] - pass_.q_indptr[r];
    for (int k = 0; k < rows; ++k, mask += words) {
      if (one.topk == 1) {
        mask[0] = 1;
        continue;
      }
      for (int node = expanded[k]; node >= 0; node = one.tree.node(node).parent) {
        const auto place = static_cast<size_t>(std::find(expanded.begin(), expanded.end(), node) - expanded.begin());
        mask[place / 32] |= 1u << (place % 32);
      }
    }
  }
}

void Drafter::take_level() {
  int logits_row = 0;
  const int64_t hidden = parts_.model->config().hidden_size;
  for (const int i : in_pass_) {
    Growing& one = growing_[i];
    const int waiting = one.tree.num_waiting();
    for (int k = 0; k < waiting; ++k, ++logits_row) {
      choose(logits_row, one.topk, choices_);
      one.tree.add(k, choices_);
      if (!options_.eagle) continue;
      const float* const feature = parts_.model->last_rows() + logits_row * hidden;
      one.features.resize(one.features.size() + choices_.size(), std::vector<float>(feature, feature + hidden));
    }
  }
}

Status Drafter::observe(const BatchBuilder& builder, std::span<const DraftRow> rows,
                        std::span<const ObservedRow> observed, DecoderModel& target, ThreadTeam& team) {
  pass_.clear();
  in_pass_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].prefill || options_.eagle) observe_row(builder, rows[i], observed[i], static_cast<int>(i));
    const int drafted = rows[i].start + static_cast<int>(std::max<size_t>(observed[i].nodes.size(), 1));
    if (!options_.eagle && !rows[i].prefill) rows[i].state->kv_len = std::min(rows[i].state->kv_len, drafted);
  }
  const float* const hidden = target.hidden();
  const int64_t width = parts_.model->config().hidden_size;
  if (options_.eagle) {
    pass_.features.resize(pass_.rows() * width);
    for (int r = 0; r < pass_.rows(); ++r) {
      std::memcpy(pass_.features.data() + r * width, hidden + pass_.target_rows[r] * width, width * sizeof(float));
    }
  }
  WW_RETURN_IF_ERROR(run(builder, target, team));
  for (size_t k = 0; k < in_pass_.size(); ++k) {
    DraftState& state = *rows[in_pass_[k]].state;
    choose(static_cast<int>(k), options_.topk, state.first);
    const float* const feature = parts_.model->last_rows() + static_cast<int64_t>(k) * width;
    state.feature.assign(feature, feature + width);
  }
  return {};
}

// The rows of a request whose K/V can be computed now. EAGLE's need the token after theirs, which is known of all but
// the last row of a prompt that nothing was sampled for.
void Drafter::observe_row(const BatchBuilder& builder, const DraftRow& row, const ObservedRow& observed, int index) {
  DraftState& state = *row.state;
  const int first = builder.batch().q_indptr[index];
  const int begin = pass_.rows();
  int position = row.start;
  const int rows = row.prefill ? row.num_tokens : static_cast<int>(observed.sampled.size());
  for (int k = 0; k < rows; ++k, ++position) {
    if (!options_.eagle) {
      add_row(builder, index, position, row.token(position));
      continue;
    }
    const int beyond = position + 1 - row.known_tokens();  // of the next token, behind what was known
    if (beyond >= static_cast<int>(observed.sampled.size())) break;
    // A row that failed has a negative token; what is computed for it is never used.
    add_row(builder, index, position, beyond < 0 ? row.token(position + 1) : std::max(observed.sampled[beyond], 0));
    pass_.target_rows.push_back(first + (row.prefill || observed.nodes.empty() ? k : observed.nodes[k]));
  }
  state.kv_len = position;
  state.first.clear();
  if (pass_.rows() == begin) return;
  add_page_row(builder, index);
  end_request(position);
  if (!options_.eagle || observed.sampled.empty()) return;
  pass_.logits_rows.push_back(pass_.rows() - 1);
  in_pass_.push_back(index);
}

}  // namespace warpweave
