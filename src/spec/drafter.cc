#include "spec/drafter.h"

#include <algorithm>
#include <utility>

namespace warpweave {

Drafter::Drafter(std::unique_ptr<DraftModel> model, const DraftOptions& options, int num_slots, int cache_group)
    : model_(std::move(model)), options_(options), cache_group_(cache_group),
      knows_gaps_(model_->sees_from_any_page() && options.topk == 1), pages_(model_->page_size()),
      slots_(options.eagle ? num_slots : 0) {}

Status Drafter::copy_pages(std::span<const PageCopy> copies) {
  for (const PageCopy& copy : copies) pages_.copied(copy);
  return model_->copy_pages(copies);
}

// That the tokens from position `begin` to `end` have their K/V there, or have not.
void Drafter::mark(const BatchBuilder& step, int index, int begin, int end, bool written) {
  if (!knows_gaps_) return;
  const int page_size = model_->page_size();
  const int32_t* const pages = step.pages_of(index, cache_group_);
  for (int position = begin; position < end; ++position) {
    const int32_t page = pages[position / page_size];
    if (written) {
      pages_.written(page, position % page_size);
    } else {
      pages_.skipped(page, position % page_size);
    }
  }
}

int32_t Drafter::slot(const BatchBuilder& step, int row, int position) const {
  const int page_size = model_->page_size();
  return step.pages_of(row, cache_group_)[position / page_size] * page_size + position % page_size;
}

void Drafter::add_row(const BatchBuilder& step, int row, int position, int32_t token) {
  pass_.input_ids.push_back(token);
  pass_.positions.push_back(position);
  pass_.kv_slots.push_back(slot(step, row, position));
}

void Drafter::end_request(const DraftRow& row, int index, int kv_len) {
  pass_.requests.push_back(index);
  pass_.q_indptr.push_back(pass_.rows());
  pass_.kv_lens.push_back(kv_len - row.state->kv_begin);
  pass_.first_pages.push_back(row.state->kv_begin / model_->page_size());
}

void Drafter::finish_pass() {
  pass_.topk = options_.topk;
  num_choices_ += static_cast<int>(pass_.logits_rows.size());
}

Status Drafter::run(const BatchBuilder& step) {
  if (pass_.rows() == 0) return {};
  finish_pass();
  const Status status = model_->run(pass_, step);
  if (!status.ok()) forget_choices();
  return status;
}

Result<std::span<const DraftChoice>> Drafter::take_choices() {
  num_choices_ = 0;
  return model_->take_choices();
}

// The slot of a state, if it is still its own.
Drafter::Slot* Drafter::slot_of(const DraftState& state) {
  if (state.slot < 0 || slots_[state.slot].stamp != state.stamp) return nullptr;
  return &slots_[state.slot];
}

int Drafter::use_slot(DraftState& state) {
  if (slot_of(state) == nullptr) {
    const auto oldest = std::min_element(slots_.begin(), slots_.end(),
                                         [](const Slot& a, const Slot& b) { return a.stamp < b.stamp; });
    state.slot = static_cast<int>(oldest - slots_.begin());
  }
  Slot& own = slots_[state.slot];
  own.stamp = state.stamp = ++clock_;
  own.first.clear();
  own.choice = -1;
  return state.slot;
}

// What the rows that were observed last chose.
Status Drafter::take_first_levels() {
  if (num_choices_ == 0) return {};
  const Result<std::span<const DraftChoice>> taken = take_choices();
  const bool known = taken.ok() && taken->size() == observed_.size() * options_.topk;
  for (size_t i = 0; i < observed_.size(); ++i) {
    Slot* const own = slot_of(observed_[i]);
    if (own == nullptr) continue;
    own->choice = -1;
    if (!known) continue;
    const auto level = taken->subspan(i * options_.topk, options_.topk);
    own->first.assign(level.begin(), level.end());
  }
  observed_.clear();
  return taken.ok() ? Status() : taken.status();
}

Status Drafter::draft(const BatchBuilder& step, std::span<const DraftRow> rows, std::vector<Proposal>& proposals) {
  WW_RETURN_IF_ERROR(take_first_levels());
  growing_ = {};
  next_kept_ = static_cast<int>(slots_.size());
  for (size_t i = 0; i < proposals.size(); ++i) {
    if (proposals[i].size() == 0 || proposals[i].found) continue;
    Growing& one = grow(static_cast<int>(i), proposals[i].size());
    one.topk = proposals[i].is_chain() ? 1 : options_.topk;
    const Slot* const own = slot_of(*rows[i].state);
    const bool followed = rows[i].state->kv_len >= rows[i].start;  // up to here; only EAGLE has slots
    if (own != nullptr && !own->first.empty() && followed) one.slot = rows[i].state->slot;
  }
  if (growing_.empty()) return {};
  WW_RETURN_IF_ERROR(options_.topk == 1 ? grow_chains(step, rows) : grow_trees(step, rows));
  for (Growing& one : growing_) {
    one.tree.take(one.nodes, proposals[one.row]);
    DraftState& state = *rows[one.row].state;
    // A chain's K/V are where its tokens will stand, but for the last, which was not read; a tree's are not.
    if (!options_.eagle) state.kv_len = rows[one.row].start + (one.topk == 1 ? one.nodes : 1);
  }
  return {};
}

// One more of growing_.
Drafter::Growing& Drafter::grow(int row, int nodes) {
  if (grown_.size() == growing_.size()) grown_.emplace_back();
  growing_ = std::span(grown_).first(growing_.size() + 1);
  Growing& one = growing_.back();
  one.row = row;
  one.nodes = nodes;
  one.topk = 1;
  one.slot = -1;
  one.features.clear();
  one.choices.clear();
  return one;
}

// Reads what it has not seen of each text; its last token gives the first level.
Status Drafter::start_standalone(const BatchBuilder& step, std::span<const DraftRow> rows) {
  pass_.clear();
  for (const Growing& one : growing_) {
    const DraftRow& row = rows[one.row];
    mark(step, one.row, std::min(row.state->kv_len, row.start), row.start + 1, true);
    for (int position = std::min(row.state->kv_len, row.start); position <= row.start; ++position) {
      if (pass_.rows() == model_->max_rows()) {
        if (pass_.q_indptr.back() < pass_.rows()) end_request(row, one.row, position);
        WW_RETURN_IF_ERROR(run(step));
        pass_.clear();
      }
      add_row(step, one.row, position, row.token(position));
    }
    pass_.logits_rows.push_back(pass_.rows() - 1);
    end_request(row, one.row, row.start + 1);
  }
  return run(step);
}

// What is not taken yet never will be.
void Drafter::forget_choices() {
  for (const DraftState& state : observed_) {
    if (Slot* const own = slot_of(state)) own->choice = -1;
  }
  observed_.clear();
  num_choices_ = 0;
  model_->forget_choices();
}

Result<bool> Drafter::draft_ahead(const BatchBuilder& step, std::span<const DraftRow> rows,
                                  std::span<const Proposal> proposals) {
  const int nodes = proposals.empty() ? 0 : proposals.front().size();
  if (options_.topk > 1 || nodes < 2) return false;
  for (size_t i = 0; i < proposals.size(); ++i) {
    if (proposals[i].size() != nodes || proposals[i].found || (options_.eagle && !has_begun(rows[i]))) return false;
  }
  growing_ = {};
  for (size_t i = 0; i < proposals.size() && !options_.eagle; ++i) {
    grow(static_cast<int>(i), nodes).choices.push_back(static_cast<int>(i));  // of the pass that begins it
  }
  if (!options_.eagle) WW_RETURN_IF_ERROR(start_standalone(step, rows));
  const int not_taken = num_choices_;
  const size_t levels = options_.eagle ? plan_equal_chains(step, rows, nodes - 1) : plan_chain(step, rows);
  num_choices_ = not_taken;
  const Result<bool> drafted = model_->run_chain_ahead(std::span(chain_).first(levels), step);
  if (!options_.eagle || (drafted.ok() && *drafted)) forget_choices();
  if (options_.eagle || !drafted.ok() || !*drafted) return drafted;
  for (const DraftRow& row : rows) row.state->kv_len = row.start + nodes;  // as after draft()
  return true;
}

// Whether a head's draft for the row has its first level, and nothing between its K/V and the row.
bool Drafter::has_begun(const DraftRow& row) {
  const Slot* const own = slot_of(*row.state);
  return own != nullptr && (own->choice >= 0 || !own->first.empty()) && row.state->kv_len >= row.start;
}

// The passes of a head over chains that are as long for every row of the step.
size_t Drafter::plan_equal_chains(const BatchBuilder& step, std::span<const DraftRow> rows, int levels) {
  const int num_rows = static_cast<int>(rows.size()), page_size = model_->page_size();
  int kept = static_cast<int>(slots_.size());
  if (chain_.size() < static_cast<size_t>(levels)) chain_.resize(levels);
  for (int level = 0; level < levels; ++level) {
    const int choices_before = num_choices_ - num_rows;  // where those of the level before begin
    pass_.clear(num_rows);
    for (int i = 0; i < num_rows; ++i, ++kept) {
      const DraftState& state = *rows[i].state;
      const Slot& own = slots_[state.slot];
      const int position = rows[i].start + level;
      const int32_t first = own.choice >= 0 ? -1 - own.choice : own.first[0].token;
      pass_.input_ids[i] = level == 0 ? first : -1 - (choices_before + i);
      pass_.positions[i] = position;
      pass_.kv_slots[i] = slot(step, i, position);
      pass_.kv_lens[i] = position + 1 - state.kv_begin;
      pass_.first_pages[i] = state.kv_begin > 0 ? state.kv_begin / page_size : 0;
      pass_.features[i] = level == 0 ? state.slot : kept - num_rows;
      pass_.keep[i] = kept;
      pass_.requests[i] = pass_.logits_rows[i] = i;
      pass_.q_indptr[i + 1] = i + 1;
    }
    finish_pass();
    std::swap(chain_[level], pass_);
  }
  return static_cast<size_t>(levels);
}

// Level by level without a look at what was chosen.
Status Drafter::grow_chains(const BatchBuilder& step, std::span<const DraftRow> rows) {
  if (!options_.eagle) WW_RETURN_IF_ERROR(start_standalone(step, rows));
  for (size_t i = 0; i < growing_.size(); ++i) {
    growing_[i].choices.clear();
    if (!options_.eagle) growing_[i].choices.push_back(static_cast<int>(i));
    if (growing_[i].slot >= 0) growing_[i].features.assign(1, growing_[i].slot);
  }
  const size_t levels = plan_chain(step, rows);
  const Status run = model_->run_chain(std::span(chain_).first(levels), step);
  if (!run.ok()) forget_choices();
  WW_RETURN_IF_ERROR(run);
  WW_ASSIGN_OR_RETURN(const std::span<const DraftChoice> choices, take_choices());
  for (Growing& one : growing_) {
    size_t level = 0;
    if (!options_.eagle) {
      one.tree.start(1, choices.subspan(one.choices[level++], 1));
    } else {
      one.tree.start(1, first_level(one));
    }
    for (; level < one.choices.size(); ++level) {
      one.tree.expand();
      one.tree.add(0, choices.subspan(one.choices[level], 1));
    }
  }
  return {};
}

// The passes of chain_; how many.
size_t Drafter::plan_chain(const BatchBuilder& step, std::span<const DraftRow> rows) {
  size_t levels = 0;
  for (; add_chain_level(step, rows, static_cast<int>(levels) + 1); ++levels) {
    finish_pass();
    if (levels == chain_.size()) chain_.emplace_back();
    std::swap(chain_[levels], pass_);
  }
  return levels;
}

// The pass that reads the drafts of level `level`, for those that want more; false: nobody does.
bool Drafter::add_chain_level(const BatchBuilder& step, std::span<const DraftRow> rows, int level) {
  pass_.clear();
  for (Growing& one : growing_) {
    if (level >= one.nodes || (options_.eagle && one.slot < 0)) continue;
    const int position = rows[one.row].start + level - (options_.eagle ? 1 : 0);
    int32_t token = 0;
    if (options_.eagle && level == 1) {
      const Slot& own = slots_[one.slot];
      token = own.choice >= 0 ? -1 - own.choice : own.first[0].token;
    } else {
      token = -1 - one.choices.back();
    }
    add_row(step, one.row, position, token);
    if (options_.eagle) {
      pass_.features.push_back(one.features[0]);
      one.features[0] = next_kept_++;
      pass_.keep.push_back(one.features[0]);
    }
    one.choices.push_back(num_choices_ + static_cast<int>(pass_.logits_rows.size()));
    pass_.logits_rows.push_back(pass_.rows() - 1);
    end_request(rows[one.row], one.row, position + 1);
  }
  return pass_.rows() > 0;
}

Status Drafter::grow_trees(const BatchBuilder& step, std::span<const DraftRow> rows) {
  if (!options_.eagle) WW_RETURN_IF_ERROR(start_standalone(step, rows));
  WW_RETURN_IF_ERROR(start_trees());
  WW_ASSIGN_OR_RETURN(const bool grown, grow_trees_at_once(step, rows));
  if (grown) return {};
  while (add_tree_level(step, rows)) {
    WW_RETURN_IF_ERROR(run(step));
    WW_RETURN_IF_ERROR(take_level());
  }
  return {};
}

std::span<const DraftChoice> Drafter::first_level(const Growing& one) const {
  return one.slot < 0 ? std::span<const DraftChoice>() : slots_[one.slot].first;
}

Status Drafter::start_trees() {
  if (options_.eagle) {
    for (Growing& one : growing_) {
      const std::span<const DraftChoice> first = first_level(one);
      one.tree.start(one.topk, first);
      one.features.assign(std::min<size_t>(one.topk, first.size()), one.slot);
    }
    return {};
  }
  WW_ASSIGN_OR_RETURN(const std::span<const DraftChoice> choices, take_choices());
  for (size_t i = 0; i < growing_.size(); ++i) {
    growing_[i].tree.start(growing_[i].topk, choices.subspan(i * options_.topk, options_.topk));
  }
  return {};
}

// What the device is to grow; false: some are no full trees.
bool Drafter::describe_trees(const BatchBuilder& step, std::span<const DraftRow> rows) {
  trees_.clear();
  in_pass_.clear();
  trees_.topk = options_.topk;
  trees_.passes = options_.num_steps - 1;
  trees_.first_kept = next_kept_;
  for (size_t i = 0; i < growing_.size(); ++i) {
    const Growing& one = growing_[i];
    if (one.tree.size() == 0 && options_.eagle) continue;  // there is nothing to begin with
    if (one.topk != options_.topk || one.tree.size() != one.topk) return false;
    const int begin = rows[one.row].start + (options_.eagle ? 0 : 1);
    for (int k = 0; k < one.topk; ++k) trees_.first.push_back({one.tree.node(k).token, one.tree.node(k).score});
    for (int k = 0; k < one.topk * trees_.passes; ++k) trees_.kv_slots.push_back(slot(step, one.row, begin + k));
    trees_.requests.push_back(one.row);
    trees_.begins.push_back(begin);
    if (options_.eagle) trees_.features.push_back(one.slot);
    in_pass_.push_back(static_cast<int>(i));
  }
  return !in_pass_.empty() && trees_.passes > 0;
}

// The trees come of the device's choices by the rule that it went by.
Result<bool> Drafter::grow_trees_at_once(const BatchBuilder& step, std::span<const DraftRow> rows) {
  if (!describe_trees(step, rows)) return false;
  WW_ASSIGN_OR_RETURN(const bool grown, model_->run_trees(trees_, step));
  if (!grown) return false;
  WW_ASSIGN_OR_RETURN(const std::span<const DraftChoice> choices, take_choices());
  const size_t topk = options_.topk;
  size_t row = 0;
  for (int pass = 0; pass < trees_.passes; ++pass) {
    for (const int i : in_pass_) {
      DraftTree& tree = growing_[i].tree;
      tree.expand();
      for (size_t w = 0; w < topk; ++w, ++row) tree.add(static_cast<int>(w), choices.subspan(row * topk, topk));
    }
  }
  return true;
}

// The pass of the next level, for requests that have not all levels yet; false: there are none. A tree's earlier nodes
// go along, for a mask relates rows of one pass only; a chain's are behind its newest.
bool Drafter::add_tree_level(const BatchBuilder& step, std::span<const DraftRow> rows) {
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
      add_row(step, one.row, base + k, node.token);
      pass_.positions.back() = base + node.depth - 1;
      if (options_.eagle) pass_.features.push_back(one.features[expanded[k]]);
    }
    for (int k = one.tree.num_waiting(); k > 0; --k) {
      pass_.logits_rows.push_back(pass_.rows() - k);
      if (options_.eagle) pass_.keep.push_back(next_kept_++);
    }
    end_request(rows[one.row], one.row, base + static_cast<int>(expanded.size()));
    in_pass_.push_back(static_cast<int>(i));
    any_tree |= one.topk > 1;
  }
  if (any_tree) build_mask();
  return !in_pass_.empty();
}

// A node sees itself and its ancestors.
void Drafter::build_mask() {
  const int words = (pass_.max_q_len() + 31) / 32;
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

Status Drafter::take_level() {
  WW_ASSIGN_OR_RETURN(const std::span<const DraftChoice> choices, take_choices());
  int row = 0;
  for (const int i : in_pass_) {
    Growing& one = growing_[i];
    const int waiting = one.tree.num_waiting();
    for (int k = 0; k < waiting; ++k, ++row) {
      one.tree.add(k, choices.subspan(row * options_.topk, one.topk));
      if (options_.eagle) one.features.resize(one.features.size() + one.topk, pass_.keep[row]);
    }
  }
  return {};
}

}  // namespace warpweave
