// States of recurrent layers: a slot a request, and checkpoints from which others go on.
#include <algorithm>
#include <cassert>

#include "sched/request.h"
#include "sched/scheduler.h"

namespace warpweave {

// The request goes on from the checkpoint at which its match ends, in a slot of its own.
void Scheduler::take_state(Request& request, const RadixTree::Match& match, Step& step) {
  assert(request.state_slot == kNoStateSlot && request.saved_states.empty());
  request.state_slot = states_->alloc(StateSlotUse::request);
  assert(request.state_slot != kNoStateSlot);
  request.branch_at = match.kv_tokens > match.tokens() ? match.kv_tokens : 0;
  request.state_saved_at = match.tokens();
  if (match.state_slot == kNoStateSlot) return;
  step.state_loads.push_back({match.state_slot, request.state_slot});
  deferred_states_.push_back({step.number, match.state_slot});
}

// Where a prefill row that could go on to `end` ends for a checkpoint.
int Scheduler::state_stop(const Request& request, int end) const {
  const int next = (request.scheduled / config_.state_interval + 1) * config_.state_interval;
  if (request.branch_at > request.scheduled) end = std::min(end, request.branch_at);
  return config_.disable_radix_cache ? end : std::min(end, next);
}

// Around the request's newest row, in the step that computes it.
void Scheduler::save_state(Request& request, const StepRow& row, Step& step) {
  if (config_.disable_radix_cache) return;
  const int interval = config_.state_interval;
  const bool before = !row.prefill && waits_for_tokens_;  // where it ends is not known yet
  const int position = before ? row.start : request.scheduled;
  const bool wanted =
      before ? position / interval > request.state_saved_at / interval
             : position == request.prefill_len || position == request.branch_at || position % interval == 0;
  if (!wanted) return;
  std::optional<StateCopy> copy = states_->fork(request.state_slot, StateSlotUse::checkpoint);
  if (!copy && tree_.evict_checkpoint()) copy = states_->fork(request.state_slot, StateSlotUse::checkpoint);
  if (!copy) return;
  (before ? step.state_loads : step.state_saves).push_back(*copy);
  request.saved_states.push_back({position, copy->to});
  request.state_saved_at = position;
}

// The first `tokens` tokens are in the tree now, and with them the checkpoints up to there.
void Scheduler::hang_up_states(Request& request, int tokens) {
  std::erase_if(request.saved_states, [&](const Request::SavedState& saved) {
    if (saved.position > tokens) return false;
    tree_.add_checkpoint(request.node, std::span<const int32_t>(request.tokens).first(saved.position), saved.slot);
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
