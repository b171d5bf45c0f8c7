#include "batch/batch_builder.h"

#include <algorithm>
#include <cassert>
#include <iterator>

#include "base/prefetch.h"

namespace warpweave {

void BatchBuilder::clear(const Step& step) {
  input_ids_.clear();
  positions_.clear();
  for (Group& group : groups_) group.kv_slots.clear();
  kv_lens_.clear();
  logits_rows_.clear();
  state_slots_.clear();
  checkpoint_indptr_.assign(1, 0);
  checkpoint_tokens_.clear();
  checkpoint_slots_.clear();
  adapters_.clear();
  futures_.clear();
  q_indptr_.assign(1, 0);
  sample_rows_.assign(step.num_samples, -1);
  reserve_page_table(step);
  batch_ = {};
}

const ForwardBatch& BatchBuilder::build(const Step& step, std::span<const Proposal> proposals) {
  clear(step);
  bool any_prefill = false, any_decode = false, any_proposal = false, any_tree = false, any_adapter = false;
  for (int i = 0; i < static_cast<int>(step.rows.size()); ++i) {
    const StepRow& row = step.rows[i];
    if (row.state_slot != kNoStateSlot) state_slots_.push_back(row.state_slot);
    append_checkpoints(row, step);
    adapters_.push_back(row.adapter);
    any_adapter |= row.adapter != nullptr;
    const Proposal& proposal = proposal_of(proposals, i);
    append_tokens(row, proposal);
    copy_page_table_row(i, row);
    const int num_tokens = row.num_tokens + proposal.size();
    batch_.max_q_len = std::max(batch_.max_q_len, num_tokens);
    batch_.max_kv_len = std::max(batch_.max_kv_len, row.start + num_tokens);
    any_proposal |= proposal.size() > 0;
    any_tree |= !proposal.is_chain();
    (row.prefill ? any_prefill : any_decode) = true;
  }
  batch_.num_reqs = static_cast<int>(step.rows.size());
  batch_.num_tokens = static_cast<int>(input_ids_.size());
  assert(batch_.num_tokens == step.num_tokens || any_proposal);
  if (batch_.num_reqs == 0) {
    batch_.mode = ForwardMode::idle;
  } else if (batch_.max_q_len == 1 && !(any_prefill && cache_.prompts_apart)) {
    batch_.mode = ForwardMode::decode;
  } else if (any_proposal) {
    batch_.mode = ForwardMode::target_verify;
  } else {
    batch_.mode = any_prefill && any_decode ? ForwardMode::mixed : ForwardMode::extend;
  }
  batch_.causal = cache_.causal;
  batch_.page_size = cache_.page_size;
  batch_.input_ids = input_ids_;
  batch_.positions = positions_;
  batch_.kv_slots = groups_[0].kv_slots;
  batch_.q_indptr = q_indptr_;
  batch_.kv_lens = kv_lens_;
  batch_.logits_rows = logits_rows_;
  batch_.state_slots = state_slots_;
  if (!checkpoint_slots_.empty()) {
    assert(!any_proposal);  // of a row that is verified, what becomes of the state is not known yet
    batch_.state_checkpoints = {checkpoint_indptr_, checkpoint_tokens_, checkpoint_slots_};
  }
  if (any_adapter) batch_.adapters = adapters_;
  batch_.page_table = groups_[0].page_table;
  batch_.page_table_stride = page_table_stride_;
  if (any_tree) build_tree(proposals);
  if (cache_.num_groups > 1) {
    group_arrays_.clear();
    for (const Group& group : groups_) group_arrays_.push_back({group.kv_slots, group.page_table});
    batch_.groups = group_arrays_;
  }
  return batch_;
}

void BatchBuilder::append_tokens(const StepRow& row, const Proposal& proposal) {
  assert(proposal.size() <= row.max_proposals);
  const int first = static_cast<int>(input_ids_.size());
  if (row.future_slot >= 0) {
    futures_.push_back({first, row.future_slot});
    input_ids_.push_back(0);
  } else {
    std::transform(row.input_ids, row.input_ids + row.num_tokens, std::back_inserter(input_ids_),
                   [this](int32_t id) { return id < cache_.vocab_size ? id : 0; });
  }
  input_ids_.insert(input_ids_.end(), proposal.tokens.begin(), proposal.tokens.end());
  for (int i = 0; i < row.num_tokens; ++i) positions_.push_back(row.start + i);
  for (int node = 1; node <= proposal.size(); ++node) positions_.push_back(row.start + proposal.depth(node));
  const int num_tokens = row.num_tokens + proposal.size(), num_logits = row.num_logits + proposal.size();
  append_slots(row, num_tokens);
  for (int i = num_tokens - num_logits; i < num_tokens; ++i) logits_rows_.push_back(first + i);
  if (row.sample_slot >= 0) {
    sample_rows_[row.sample_slot] = static_cast<int32_t>(logits_rows_.size()) - 1 - proposal.size();
  }
  q_indptr_.push_back(first + num_tokens);
  kv_lens_.push_back(row.start + num_tokens);
}

// Nodes of a proposal are written side by side, whatever their depth.
void BatchBuilder::append_slots(const StepRow& row, int num_tokens) {
  const int page_size = cache_.page_size;
  for (int g = 0; g < cache_.num_groups; ++g) {
    const int32_t* page = row.pages + row.start / page_size * cache_.num_groups + g;
    int offset = row.start % page_size;
    for (int i = 0; i < num_tokens; ++i) {
      groups_[g].kv_slots.push_back(*page * page_size + offset);
      if (++offset == page_size) {
        offset = 0;
        page += cache_.num_groups;
      }
    }
  }
}

void BatchBuilder::append_checkpoints(const StepRow& row, const Step& step) {
  for (int i = row.first_checkpoint; i < row.first_checkpoint + row.num_checkpoints; ++i) {
    checkpoint_tokens_.push_back(step.state_checkpoints[i].num_tokens);
    checkpoint_slots_.push_back(step.state_checkpoints[i].slot);
  }
  checkpoint_indptr_.push_back(static_cast<int32_t>(checkpoint_slots_.size()));
}

void BatchBuilder::mark_second_texts(std::span<const int> begins) {
  token_types_.assign(static_cast<size_t>(batch_.num_tokens), 0);
  for (int r = 0; r < batch_.num_reqs; ++r) {
    if (begins[r] < 0) continue;
    const int end = q_indptr_[r + 1], first = std::min(q_indptr_[r] + begins[r], end);
    std::fill(token_types_.begin() + first, token_types_.begin() + end, uint8_t{1});
  }
  batch_.token_types = token_types_;
}

void BatchBuilder::place_rows(std::span<const RowPlaces> places) {
  const size_t tokens = positions_.size();
  rope_positions_.resize(3 * tokens);
  for (int r = 0; r < batch_.num_reqs; ++r) {
    const RowPlaces& of = places[r];
    const int prompt_tokens = of.prompt_tokens();
    for (int i = q_indptr_[r]; i < q_indptr_[r + 1]; ++i) {
      const int position = positions_[i];
      for (int axis = 0; axis < 3; ++axis) {
        rope_positions_[axis * tokens + i] = position < prompt_tokens ? of.prompt[axis * prompt_tokens + position]
                                                                      : position + of.after_prompt;
      }
    }
  }
  batch_.rope_positions = rope_positions_;
}

// A node sees itself and its ancestors.
void BatchBuilder::build_tree(std::span<const Proposal> proposals) {
  const int words = (batch_.max_q_len + 31) / 32;
  tree_mask_.assign(static_cast<size_t>(batch_.num_tokens) * words, 0);
  tree_parents_.assign(static_cast<size_t>(batch_.num_tokens), -1);
  for (int r = 0; r < batch_.num_reqs; ++r) {
    const Proposal& proposal = proposal_of(proposals, r);
    uint32_t* mask = tree_mask_.data() + static_cast<size_t>(q_indptr_[r]) * words;
    for (int node = 0; node <= proposal.size(); ++node, mask += words) {
      if (node > 0) tree_parents_[q_indptr_[r] + node] = proposal.parent(node);
      for (int seen = node;; seen = proposal.parent(seen)) {
        mask[seen / 32] |= 1u << (seen % 32);
        if (seen == 0) break;
      }
    }
  }
  batch_.tree_mask = tree_mask_;
  batch_.tree_mask_words = words;
  batch_.tree_parents = tree_parents_;
}

void BatchBuilder::reserve_page_table(const Step& step) {
  int pages = 0;
  for (const StepRow& row : step.rows) pages = std::max(pages, row.num_pages);
  if (pages > page_table_stride_) {
    page_table_stride_ = std::max(pages, page_table_stride_ + page_table_stride_ / 2);
    table_rows_.clear();  // the rows move
  }
  if (table_rows_.size() < step.rows.size()) table_rows_.resize(step.rows.size());
  for (Group& group : groups_) group.page_table.resize(table_rows_.size() * page_table_stride_);
  // Where rows grow: each stands on a line of its own, which the one before does not bring along.
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const StepRow& row = step.rows[i];
    if (row.num_pages == 0) continue;
    const size_t last = i * page_table_stride_ + row.num_pages - 1;
    for (const Group& group : groups_) prefetch(group.page_table.data() + last);
    prefetch(row.pages + static_cast<size_t>(row.num_pages) * cache_.num_groups - 1);
  }
}

void BatchBuilder::copy_page_table_row(int index, const StepRow& row) {
  TableRow& known = table_rows_[index];
  const bool same = known.id == row.id && known.pages_version == row.pages_version;
  if (!same) known = {row.id, row.pages_version, 0, {}};
  for (int g = 0; g < cache_.num_groups; ++g) {
    int32_t* const table = groups_[g].page_table.data() + static_cast<size_t>(index) * page_table_stride_;
    const int num_blank = row.num_blank != nullptr ? row.num_blank[g] : 0;
    std::fill(table + known.num_blank[g], table + std::max(num_blank, known.num_blank[g]), cache_.blank_page);
    for (int i = std::max(std::min(known.num_pages, row.num_pages), num_blank); i < row.num_pages; ++i) {
      table[i] = row.pages[i * cache_.num_groups + g];
    }
    known.num_blank[g] = num_blank;
  }
  known.num_pages = row.num_pages;
}

void BatchBuilder::replace_proposals(std::span<const Proposal> proposals) {
  bool any_tree = false;
  for (int r = 0; r < batch_.num_reqs; ++r) {
    const Proposal& proposal = proposal_of(proposals, r);
    any_tree |= !proposal.is_chain();
    const int node_0 = q_indptr_[r + 1] - 1 - proposal.size();
    assert(node_0 >= q_indptr_[r]);
    for (int node = 1; node <= proposal.size(); ++node) {
      input_ids_[node_0 + node] = proposal.token(node);
      positions_[node_0 + node] = positions_[node_0] + proposal.depth(node);
    }
  }
  batch_.tree_mask = {};
  batch_.tree_mask_words = 0;
  batch_.tree_parents = {};
  if (any_tree) build_tree(proposals);
}

void BatchBuilder::patch_futures(std::span<const int32_t> sampled) {
  for (const FutureToken& future : futures_) {
    // A row that sampled nothing has failed; what its next step computes is thrown away.
    input_ids_[future.token_row] = std::max(sampled[future.sample_slot], 0);
  }
}

}  // namespace warpweave
