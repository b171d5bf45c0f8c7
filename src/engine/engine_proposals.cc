// Proposals in the engine's loop: asked for before a step is built, counted when it is done.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "engine/engine_core.h"
#include "engine/speculation.h"

namespace warpweave {

void EngineCore::propose(const Step& step, DeviceStep& device_step) {
  device_step.sampled_begin.clear();
  if (options_.proposer == nullptr && !forced_) return;
  bool any = false;
  device_step.proposals.resize(step.rows.size());
  for (Proposal& proposal : device_step.proposals) proposal.clear();
  if (forced_) forced_->set_rows(static_cast<int>(step.rows.size()));
  if (lengths_) plan_lengths(step);
  int left = options_.scheduler.max_step_proposals;
  const int share = options_.proposer != nullptr ? left / std::max(static_cast<int>(step.rows.size()), 1) : left;
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const StepRow& row = step.rows[i];
    Proposal& proposal = device_step.proposals[i];
    const auto& request = *static_cast<LiveRequest*>(row.user);
    // A request that wants each token's state gets them one by one.
    int max_tokens = request.request.states == StateWish::none ? std::min({row.max_proposals, share, left}) : 0;
    if (max_tokens == 0) continue;
    ProposalCall call = proposal_call(request, max_tokens);
    call.step_requests = static_cast<int>(step.rows.size());
    call.only_found = lengths_ && lengths_->only_looks_up(call.step_requests);
    if (lengths_) call.max_drafts = std::min(max_tokens, request.draft_length.length);
    if (forced_) forced_->propose(call, proposal);
    if (proposal.size() == 0 && options_.proposer != nullptr) options_.proposer->propose(call, proposal);
    left -= proposal.size();
    any |= proposal.size() > 0;
  }
  if (!any) device_step.proposals.clear();
}

ProposalCall EngineCore::proposal_call(const LiveRequest& request, int max_tokens) const {
  return {.input_ids = request.request.input_ids,
          .output_ids = request.output_ids,
          .max_tokens = max_tokens,
          .max_drafts = max_tokens,
          .request = request.id,
          .cache_salt = request.request.cache_salt,
          .grammar = request.request.sampling.grammar};
}

// Whether the next step is to have what grammars force in it. Such a step waits for the one in flight, which most
// likely writes the first of the forced tokens; so the guesses must save more than that costs.
bool EngineCore::pays_to_jump() {
  // A look takes about as long as the rows' masks do: with many rows, for which it seldom pays, not before every step,
  // and the less often the longer it did not.
  constexpr int kRowsLookedAtAStep = 8, kMostVainLooks = 8;
  const int live = static_cast<int>(requests_.size());
  if (live_grammars_ == 0 || ++steps_unlooked_ * kRowsLookedAtAStep < live * std::max(vain_looks_, 1)) return false;
  steps_unlooked_ = 0;
  const int in_flight = running_ != nullptr ? 1 : 0;
  const auto decodes = [](const LiveRequest& request) { return !request.answered && !request.output_ids.empty(); };
  const auto rows =
      std::count_if(requests_.begin(), requests_.end(), [&](const auto& entry) { return decodes(*entry.second); });
  forced_->set_rows(static_cast<int>(rows));
  int left = options_.scheduler.max_step_proposals;
  double rows_saved = 0;
  for (const auto& [id, request] : requests_) {
    if (!decodes(*request) || request->request.states != StateWish::none) continue;
    const auto forecast = forced_->forecast(proposal_call(*request, std::min(kMaxForcedProposals, left)), in_flight);
    rows_saved += forecast.rows_saved;
    left -= forecast.tokens;
  }
  const bool pays = rows_saved >= forced_->wait_cost_rows();
  vain_looks_ = pays || live <= kRowsLookedAtAStep ? 0 : std::min(vain_looks_ + 1, kMostVainLooks);
  if (pays) steps_unlooked_ = live;  // more may follow
  return pays;
}

// Whether the next step is to have room for a draft model's guesses.
bool EngineCore::anyone_guesses() {
  planned_.clear();
  for (const auto& [id, request] : requests_) {
    if (!request->answered && !request->output_ids.empty()) planned_.push_back(&request->draft_length);
  }
  lengths_->wake(planned_);
  if (lengths_->only_looks_up(static_cast<int>(planned_.size()))) return true;
  return std::any_of(requests_.begin(), requests_.end(),
                     [](const auto& entry) { return !entry.second->answered && !entry.second->draft_length.asleep; });
}

// How many guesses each request of a step of decoding gets. A step that prefills, too, has none.
void EngineCore::plan_lengths(const Step& step) {
  planned_.clear();
  for (const StepRow& row : step.rows) {
    auto& request = *static_cast<LiveRequest*>(row.user);
    if (row.max_proposals == 0 || request.request.states != StateWish::none) continue;
    const float logprob = request.draft.first_logprob;  // no step is in flight: this one waited for its tokens
    request.draft_length.first = logprob <= 0 ? std::exp(static_cast<double>(logprob)) : -1;
    planned_.push_back(&request.draft_length);
  }
  const int rows = static_cast<int>(step.rows.size());
  lengths_->plan(planned_, rows, options_.scheduler.max_step_proposals / std::max(rows, 1));
}

// Whether the draft model is to read what comes of a row. Prompts are read in any case: nothing makes up for them
// later.
bool EngineCore::follows(const StepRow& row) const {
  const LengthState& length = static_cast<const LiveRequest*>(row.user)->draft_length;
  return !length.asleep && (row.prefill || lengths_ == nullptr || lengths_->follows());
}

void EngineCore::learn_lengths(const DeviceStep& device_step) {
  const std::vector<StepRow>& rows = device_step.step->rows;
  const bool prefills = std::any_of(rows.begin(), rows.end(), [](const StepRow& row) { return row.prefill; });
  const size_t rows_before = std::exchange(last_decode_rows_, prefills ? 0 : rows.size());
  const auto now = SteadyClock::now();
  const std::chrono::duration<double, std::micro> since_last = now - std::exchange(last_step_end_, now);
  if (prefills) return;
  const bool alike = rows_before == rows.size() && !device_step.first_of_shape;
  const bool waited = alike && device_step.waited_for_next;
  // Other programs stop some steps, and say nothing about guesses: where CPU time is known, that is what counts.
  const bool by_cpu = device_step.cpu_us > 0;
  DraftedStep done = {.requests = static_cast<int>(rows.size()),
                      .tokens = static_cast<int>(device_step.sampled_ids.size()),
                      .follows = is_followed(device_step),
                      .step_us = by_cpu ? device_step.cpu_us : device_step.device_us,
                      .draft_us = by_cpu ? device_step.draft_cpu_us : device_step.draft_us,
                      .since_last_us = alike ? since_last.count() : 0,
                      .waited_us = waited ? std::max(0.0, since_last.count() - device_step.device_us) : 0};
  const std::vector<int>& begin = device_step.sampled_begin;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Proposal& proposal = proposal_of(device_step.proposals, i);
    const int guesses = proposal.size();
    if (guesses == 0 || rows[i].sample_slot < 0) continue;
    const int tokens = begin[rows[i].sample_slot + 1] - begin[rows[i].sample_slot];
    done.guesses += guesses;
    if (proposal.found) continue;
    lengths_->outcome(static_cast<LiveRequest*>(rows[i].user)->draft_length, guesses, tokens - 1);
    done.levels = std::max(done.levels, guesses);
  }
  lengths_->measured(done);
}

// Every decode row counts as verified, also where nothing was proposed: tokens by row are what speculation is for.
void EngineCore::count_proposals(const DeviceStep& device_step) {
  if (options_.proposer == nullptr) return;
  if (lengths_) learn_lengths(device_step);
  for (size_t i = 0; i < device_step.step->rows.size(); ++i) {
    const StepRow& row = device_step.step->rows[i];
    if (row.prefill || row.sample_slot < 0) continue;
    const std::vector<int>& begin = device_step.sampled_begin;
    const int tokens = begin.empty() ? 1 : begin[row.sample_slot + 1] - begin[row.sample_slot];
    for (SpeculationCounts* counts : {&speculated_, &static_cast<LiveRequest*>(row.user)->speculated}) {
      ++counts->verify_steps;
      counts->draft_tokens += proposal_of(device_step.proposals, i).size();
      counts->accepted_tokens += tokens - 1;
    }
    const size_t kept = std::min(static_cast<size_t>(tokens - 1), accepted_by_position_.size());
    for (size_t position = 0; position < kept; ++position) ++accepted_by_position_[position];
  }
}

}  // namespace warpweave
