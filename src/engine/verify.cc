#include "engine/verify.h"

#include <algorithm>

#include "base/prefetch.h"

namespace warpweave {

// At node 0 of every slot.
void VerifyWalk::begin(const DeviceStep& step) {
  paths_.resize(step.sample_rows.size());
  stride_ = 1;
  for (const Proposal& proposal : step.proposals) stride_ = std::max(stride_, static_cast<size_t>(proposal.size()) + 1);
  nodes_.resize(paths_.size() * stride_);
  const ForwardBatch& batch = step.builder.batch();
  for (size_t row = 0; row < step.sample_slots.size(); ++row) {
    const int slot = step.sample_slots[row];
    if (slot < 0) continue;
    Path& path = paths_[slot];
    path.proposal = &proposal_of(step.proposals, row);
    path.state = step.sample_rows[slot].state;
    path.first_logits_row = step.sample_rows[slot].logits_row;
    path.first_row = batch.logits_rows[path.first_logits_row];
    path.num_nodes = 0;
    accept(slot, 0);
    prefetch_all(path.state->end_ids());
  }
}

void VerifyWalk::accept(int slot, int node) {
  Path& path = paths_[slot];
  path.node = node;
  nodes_[slot * stride_ + path.num_nodes++] = node;
}

void VerifyWalk::start(const DeviceStep& step) {
  begin(step);
  active_.clear();
  for (size_t slot = 0; slot < paths_.size(); ++slot) {
    active_.push_back(static_cast<int>(slot));
    paths_[slot].tokens.clear();
  }
}

void VerifyWalk::enter(int first_row, int rows) {
  active_.clear();
  for (size_t slot = 0; slot < paths_.size(); ++slot) {
    const int row = paths_[slot].first_logits_row - first_row;
    if (row >= 0 && row < rows) active_.push_back(static_cast<int>(slot));
  }
}

void VerifyWalk::advance(std::span<SampledRow> sampled) {
  size_t staying = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    SampledRow& token = paths_[active_[i]].tokens.emplace_back(std::move(sampled[i]));
    if (go_on(active_[i], token.token_id)) active_[staying++] = active_[i];
  }
  active_.resize(staying);
}

// Whether the slot's proposal goes on with the choice at its node; with dice, that is what is guessed.
bool VerifyWalk::go_on(int slot, int32_t& token) {
  const Path& path = paths_[slot];
  const std::span<const int32_t> ends = path.state->end_ids();
  if (token < 0 || std::find(ends.begin(), ends.end(), token) != ends.end()) return false;
  const int next = dice_ ? thrown(slot, token) : path.proposal->child(path.node, token);
  if (next < 0) return false;
  accept(slot, next);
  return true;
}

void VerifyWalk::take(DeviceStep& step, std::span<const int32_t> choices) {
  begin(step);
  step.sampled.clear();
  step.sampled_ids.clear();
  step.sampled_begin.assign(1, 0);
  for (int slot = 0; slot < static_cast<int>(paths_.size()); ++slot) {
    const Path& path = paths_[slot];
    for (bool more = true; more;) {
      int32_t token = choices[path.first_logits_row + path.node];
      path.state->add_output(token);
      more = go_on(slot, token);
      step.sampled_ids.push_back(token);
    }
    step.sampled_begin.push_back(static_cast<int>(step.sampled_ids.size()));
  }
  thrown_.clear();
}

std::span<const int> VerifyWalk::throw_ahead(const DeviceStep& step) {
  thrown_.assign(step.sample_rows.size(), 1);
  for (size_t row = 0; row < step.sample_slots.size(); ++row) {
    if (step.sample_slots[row] < 0) continue;
    int& nodes = thrown_[step.sample_slots[row]];
    while (nodes <= proposal_of(step.proposals, row).size() && falls_right()) ++nodes;
  }
  return thrown_;
}

// The first child of the path's node, or -1.
int VerifyWalk::thrown(int slot, int32_t& token) {
  const Path& path = paths_[slot];
  const bool right = thrown_.empty() ? falls_right() : path.num_nodes < thrown_[slot];
  if (!right) return -1;
  for (int next = path.node + 1; next <= path.proposal->size(); ++next) {
    if (path.proposal->parent(next) != path.node) continue;
    token = path.proposal->token(next);
    return next;
  }
  return -1;
}

void VerifyWalk::finish(DeviceStep& step) {
  thrown_.clear();
  step.sampled.clear();
  step.sampled_ids.clear();
  step.sampled_begin.assign(1, 0);
  for (Path& path : paths_) {
    for (SampledRow& token : path.tokens) {
      step.sampled_ids.push_back(token.token_id);
      step.sampled.push_back(std::move(token));
    }
    step.sampled_begin.push_back(static_cast<int>(step.sampled.size()));
  }
}

void observed_rows(const DeviceStep& step, const VerifyWalk& walk, std::vector<ObservedRow>& out) {
  out.assign(step.draft_rows.size(), {});
  const std::span<const int32_t> ids = step.sampled_ids;
  const std::vector<int>& begin = step.sampled_begin;
  for (size_t row = 0; row < step.draft_rows.size(); ++row) {
    const int slot = step.sample_slots[row];
    if (slot < 0) continue;
    out[row].sampled = begin.empty() ? ids.subspan(slot, 1) : ids.subspan(begin[slot], begin[slot + 1] - begin[slot]);
    if (!begin.empty()) out[row].nodes = walk.nodes(slot);
  }
}

void sample_walk(const DeviceStep& step, const SampleLogits& logits, int first_row, Sampler& sampler,
                 VerifyWalk& walk) {
  std::vector<SampleRow> rows;
  std::vector<SampledRow> sampled;
  std::vector<std::vector<int32_t>> guesses(step.sample_rows.size());
  while (!walk.slots().empty()) {
    rows.clear();
    for (const int slot : walk.slots()) {
      SampleRow& row = rows.emplace_back(step.sample_rows[slot]);
      row.logits_row = walk.logits_row(slot) - first_row;
      row.position += walk.depth(slot);
      if (row.accept.lossless()) continue;
      walk.guesses(slot, guesses[slot]);
      row.guesses = guesses[slot];
    }
    sampled.assign(rows.size(), {});
    sampler.sample(rows, logits, sampled);
    walk.advance(sampled);
  }
}

void sample_and_verify(DeviceStep& step, const SampleLogits& logits, Sampler& sampler, VerifyWalk& walk) {
  walk.start(step);
  sample_walk(step, logits, 0, sampler, walk);
  walk.finish(step);
}

}  // namespace warpweave
