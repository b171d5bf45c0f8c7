// States of recurrent layers: a slot a request, and checkpoints from which others go on.
#include <algorithm>
#include <cassert>

#include "sched/request.h"
#include "sched/scheduler.h"

namespace warpweave {

Status Scheduler::validate_states(const SchedulerConfig& config) {
  if (config.state_slots == 0) return {};
  if (config.state_interval < 1 || config.state_request_slots > config.state_slots ||
      config.state_request_slots < config.max_running_requests) {
    return Status::internal("states need a slot for every running request, and an interval");
  }
  const int cut = config.state_cut_tokens;
  if (cut < 1 || config.state_interval % cut != 0 ||
      (config.chunked_prefill_size != -1 && config.chunked_prefill_size < cut)) {
    return Status::internal("state_cut_tokens must divide state_interval, and a chunk of prefill hold as many");
  }
  return {};
}

// The request goes on from the checkpoint at which its match ends, in a slot of its own.
void Scheduler::take_state(Request& request, const RadixTree::Match& match, Step& step) {
  assert(request.state_slot == kNoStateSlot && request.saved_states.empty());
  request.state_slot = states_->alloc(StateSlotUse::request);
  assert(request.state_slot != kNoStateSlot);
  const int branch = last_cut(match.kv_tokens);
  request.branch_at = branch > match.tokens() ? branch : 0;
  request.state_saved_at = match.tokens();
  if (match.state_slot == kNoStateSlot) return;
  step.state_loads.push_back({match.state_slot, request.state_slot});
  deferred_states_.push_back({step.number, match.state_slot});
}

int Scheduler::state_cut_tokens() const { return states_ ? config_.state_cut_tokens : 1; }

// How many of its first `tokens` tokens others may share: where bits depend on how they were computed, those of a
// prompt up to a place where it may be cut.
int Scheduler::shared_tokens(const Request& request, int tokens) const {
  if (state_cut_tokens() == 1) return tokens;
  return last_cut(std::min(tokens, request.prefill_len));
}

// Where a prefill row that could go on to `end` ends, to be cut where it may be and for a checkpoint that it cannot
// leave on its way.
int Scheduler::state_stop(const Request& request, int end) const {
  if (end < request.prefill_len) end = last_cut(end);
  if (config_.state_checkpoints_within_rows || config_.disable_radix_cache) return end;
  const int next = (request.scheduled / config_.state_interval + 1) * config_.state_interval;
  if (request.branch_at > request.scheduled) end = std::min(end, request.branch_at);
  return std::min(end, next);
}

// For a checkpoint in the request's newest row, before which the cache's of at most `most` worth give way, and the
// request's own earliest: the cache does not know that one yet, and whichever step writes it runs before this one.
int32_t Scheduler::take_checkpoint_slot(Request& request, const StepRow& row, CheckpointWorth most) {
  int32_t slot = states_->alloc(StateSlotUse::checkpoint);
  if (slot == kNoStateSlot && tree_.evict_checkpoint(most)) slot = states_->alloc(StateSlotUse::checkpoint);
  if (slot != kNoStateSlot) return slot;
  std::vector<Request::SavedState>& saved = request.saved_states;
  auto earliest = saved.end();
  for (auto it = saved.begin(); it != saved.end(); ++it) {
    if (it->position > row.start || it->position == request.branch_at) continue;
    if (earliest == saved.end() || it->position < earliest->position) earliest = it;
  }
  if (earliest == saved.end()) return kNoStateSlot;
  slot = earliest->slot;
  saved.erase(earliest);
  return slot;
}

// At the end of the request's newest row, or before it.
void Scheduler::save_state(Request& request, const StepRow& row, Step& step) {
  const int interval = config_.state_interval;
  const bool before = !row.prefill && waits_for_tokens_;  // where it ends is not known yet
  const int position = before ? row.start : request.scheduled;
  if (state_cut_tokens() > 1 && (!row.prefill || position != last_cut(position))) return;
  const bool wanted =
      before ? position / interval > request.state_saved_at / interval
             : position == request.prefill_len || position == request.branch_at || position % interval == 0;
  if (!wanted) return;
  const int32_t slot = take_checkpoint_slot(request, row, CheckpointWorth::kept);
  if (slot == kNoStateSlot) return;
  (before ? step.state_loads : step.state_saves).push_back({request.state_slot, slot});
  request.saved_states.push_back({position, slot});
  request.state_saved_at = position;
}

// What a prefill row passes on its way to its end. Where slots are short, the later ones are worth more.
void Scheduler::save_states_within(Request& request, StepRow& row, Step& step) {
  const int interval = config_.state_interval, end = request.scheduled, branch = request.branch_at;
  row.first_checkpoint = static_cast<int>(step.state_checkpoints.size());
  const auto save = [&](int position) {
    const CheckpointWorth worth = position == branch ? CheckpointWorth::kept : CheckpointWorth::passed;
    const int32_t slot = take_checkpoint_slot(request, row, worth);
    if (slot == kNoStateSlot) return false;
    step.state_checkpoints.push_back({position - row.start, slot});
    request.saved_states.push_back({position, slot});
    request.state_saved_at = std::max(request.state_saved_at, position);
    return true;
  };
  // In place of the prompt's end, where that is no place to go on from.
  const int last = last_cut(end) == end || end < request.prefill_len ? 0 : last_cut(end);
  bool room = branch <= row.start || branch >= end || save(branch);
  if (last > row.start && last != branch) room = room && save(last);
  for (int position = (end - 1) / interval * interval; room && position > row.start; position -= interval) {
    if (position != branch && position != last) room = save(position);
  }
  std::sort(step.state_checkpoints.begin() + row.first_checkpoint, step.state_checkpoints.end(),
            [](const StateCheckpoint& a, const StateCheckpoint& b) { return a.num_tokens < b.num_tokens; });
  row.num_checkpoints = static_cast<int>(step.state_checkpoints.size()) - row.first_checkpoint;
}

// The first `tokens` tokens are in the tree now, and with them the checkpoints up to there.
void Scheduler::hang_up_states(Request& request, int tokens) {
  int last = 0;
  for (const Request::SavedState& saved : request.saved_states) {
    if (saved.position <= tokens) last = std::max(last, saved.position);
  }
  std::sort(request.saved_states.begin(), request.saved_states.end(),
            [](const Request::SavedState& a, const Request::SavedState& b) { return a.position < b.position; });
  std::erase_if(request.saved_states, [&](const Request::SavedState& saved) {
    if (saved.position > tokens) return false;
    const bool kept = saved.position == last || saved.position == request.branch_at;
    tree_.add_checkpoint(request.node, std::span<const int32_t>(request.tokens).first(saved.position), saved.slot,
                         kept ? CheckpointWorth::kept : CheckpointWorth::passed);
    return true;
  });
}

void Scheduler::release_state(Request& request) {
  for (const Request::SavedState& saved : request.saved_states) states_->unref(saved.slot);
  request.saved_states.clear();
  if (request.state_slot != kNoStateSlot) states_->unref(request.state_slot);
  request.state_slot = kNoStateSlot;
  request.branch_at = 0;
}

Status Scheduler::audit_states() const {
  std::vector<int32_t> requests, checkpoints = tree_.checkpoints();
  for (const auto& [id, request] : requests_) {
    if (request->state_slot != kNoStateSlot) requests.push_back(request->state_slot);
    for (const Request::SavedState& saved : request->saved_states) checkpoints.push_back(saved.slot);
  }
  for (const DeferredState& deferred : deferred_states_) checkpoints.push_back(deferred.slot);
  return states_->audit(requests, checkpoints);
}

}  // namespace warpweave
