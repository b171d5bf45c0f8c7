#include "engine/engine_core.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/trim_memory.h"

namespace warpweave {
namespace {

constexpr auto kUntilItComes = std::chrono::microseconds::max();
constexpr auto kIdleBeforeTrim = std::chrono::milliseconds(100);
constexpr auto kBetweenTrims = std::chrono::seconds(5);

}  // namespace

EngineCore::EngineCore(EngineCoreOptions options, std::unique_ptr<DeviceRunner> runner)
    : options_(std::move(options)),
      next_seed_(options_.random_seed),
      scheduler_(std::make_unique<Scheduler>(options_.scheduler)),
      runner_(std::move(runner)) {
  for (auto& device_step : device_steps_) {
    device_step = std::make_unique<DeviceStep>(options_.batch_cache);
  }
  if (options_.adaptive) lengths_ = make_length_planner(*options_.adaptive);
  if (options_.proposes_forced) forced_.emplace(options_.step_cost_rows);
  update_stats();
  thread_ = std::thread([this] { loop(); });
}

// Takes no memory: the destructor has to come through where there is none.
void EngineCore::Inbox::mark_all_aborted() noexcept {
  for (auto& request : arrived) request->aborted = true;
  abort_all = true;
}

EngineCore::~EngineCore() {
  {
    std::lock_guard lock(mutex_);
    draining_ = stopping_ = true;
    inbox_.mark_all_aborted();
  }
  inbox_changed_.notify_one();
  thread_.join();
}

// Memory may end anywhere below. A step that was cut off leaves scheduler and requests in no known
// state, so both begin anew: every request is answered with the error, and no page is lost.
void EngineCore::loop() {
  for (;;) {
    try {
      while (take_inbox(patience())) run_step();
      return;
    } catch (const std::bad_alloc&) {
      LOG_ERROR("the engine ran out of memory and starts anew");
      recover(out_of_memory_);
    } catch (const std::exception& error) {
      LOG_ERROR("the engine failed and starts anew: {}", error.what());
      recover(engine_failed_);
    }
  }
}

// Whether the step has room for guesses: then the next one is made of what came of it.
static bool checks_guesses(const Step& step) {
  return std::any_of(step.rows.begin(), step.rows.end(), [](const StepRow& row) { return row.max_proposals > 0; });
}

void EngineCore::run_step() {
  const bool overlap = options_.scheduler.overlap_depth > 0;
  const auto idle_since = std::exchange(idle_since_, {});
  const auto begun = idle_since != SteadyClock::time_point{} ? idle_since : SteadyClock::now();
  if (lengths_) scheduler_->set_proposing(lengths_->may_guess() && anyone_guesses());
  if (options_.proposer == nullptr && forced_) scheduler_->set_proposing(pays_to_jump());
  const Step& step = scheduler_->schedule();
  DeviceStep* launched = step.empty() ? nullptr : prepare(step);
  if (launched != nullptr) {
    to_trim_ = true;
    launched->waited_for_next = !overlap || checks_guesses(step);
    launched->launched_at = SteadyClock::now();
    runner_->launch(launched);
    (launched_[0] == nullptr ? launched_[0] : launched_[1]) = launched;
    launched->host_us = std::chrono::duration<double, std::micro>(SteadyClock::now() - begun).count();
  }
  publish();
  drop_released();
  DeviceStep* finished = overlap ? running_ : launched;
  running_ = overlap ? launched : nullptr;
  if (finished != nullptr) {
    wait(finished);
    if (!finished->status.ok()) {
      if (running_ != nullptr) wait(running_);
      running_ = nullptr;
      fail_steps(finished->status);
    } else {
      commit(*finished);
    }
  }
  // If the device waits for its next step, that comes first.
  if (scheduler_->idle()) idle_since_ = {};
  if (running_ != nullptr || !overlap || scheduler_->idle()) publish();
  if (unpublished_ == nullptr) drop_released();
  update_stats();
}

void EngineCore::wait(DeviceStep* step) {
  runner_->wait(step);
  for (DeviceStep*& launched : launched_) {
    if (launched == step) launched = nullptr;
  }
}

void EngineCore::recover(const Status& why) noexcept {
  for (DeviceStep*& launched : launched_) {
    if (launched != nullptr) runner_->wait(std::exchange(launched, nullptr));
  }
  running_ = unpublished_ = nullptr;
  for (;;) {
    try {
      reset(why);
      return;
    } catch (const std::exception&) {  // still no memory: what was answered stays answered
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

// Everybody who waits is answered, then nothing is left of what was. May fail half way and is then called again.
void EngineCore::reset(const Status& why) {
  for (auto& request : taken_.arrived) {
    if (request == nullptr) continue;
    auto& owner = requests_[next_id_++];
    owner = std::move(request);
  }
  taken_.arrived.clear();
  for (auto& [id, request] : requests_) answer_aborted(*request, why);
  for (; !taken_.flushes.empty(); taken_.flushes.pop_back()) taken_.flushes.back().set_value(false);
  for (; !taken_.audits.empty(); taken_.audits.pop_back()) taken_.audits.back().set_value(why);
  scheduler_ = std::make_unique<Scheduler>(options_.scheduler);
  if (options_.proposer != nullptr) options_.proposer->forget_all();
  if (forced_) forced_->forget_all();
  taken_ = {};
  requests_.clear();
  live_grammars_ = 0;
  ids_by_rid_.clear();
  update_stats();
}

// How long a request is waited for before the next step is made. Where one ended, its client may send the next at
// once, which would miss that step by little; the device is busy for about a decode step at least.
std::chrono::microseconds EngineCore::patience() const {
  if (running_ == nullptr) return scheduler_->idle() ? kUntilItComes : std::chrono::microseconds(0);
  if (running_->waited_for_next && runner_->runs_within_wait()) return std::chrono::microseconds(0);
  return std::chrono::microseconds(request_ended_ ? static_cast<int64_t>(last_decode_us_ / 4) : 0);
}

// Called before requests of the same inbox are started, as these aborts do not concern them.
void EngineCore::abort_taken() {
  if (taken_.abort_all) {
    for (auto& [id, request] : requests_) end_request(*request, aborted_);
  }
  taken_.abort_all = false;
  for (const std::string& rid : taken_.aborted) {
    const auto it = ids_by_rid_.find(rid);
    if (it != ids_by_rid_.end()) end_request(*requests_.at(it->second), aborted_);
  }
  taken_.aborted.clear();
}

bool EngineCore::take_inbox(std::chrono::microseconds patience) {
  {
    std::unique_lock lock(mutex_);
    const auto came = [&] { return stopping_ || !inbox_.empty(); };
    if (patience == kUntilItComes) {
      if (to_trim_) trim_when_idle(lock);
      inbox_changed_.wait(lock, came);
    } else if (patience.count() > 0) {
      inbox_changed_.wait_for(lock, patience, came);
    }
    std::swap(taken_, inbox_);
  }
  abort_taken();
  for (auto& request : taken_.arrived) start_request(request);
  taken_.arrived.clear();
  if (taken_.out_of_time) {
    const Status late = Status::unavailable("the server is shutting down and had no time to finish this");
    for (auto& [id, request] : requests_) end_request(*request, late);
  }
  taken_.out_of_time = false;
  for (; !taken_.flushes.empty(); taken_.flushes.pop_back()) {
    taken_.flushes.back().set_value(scheduler_->flush_cache());
  }
  for (; !taken_.audits.empty(); taken_.audits.pop_back()) taken_.audits.back().set_value(scheduler_->audit());
  return has_more();
}

// What a burst of requests left free goes back to the system, when nothing has come for a moment; not more than every
// few seconds, as it costs milliseconds, and pages that are used again are to be had anew.
void EngineCore::trim_when_idle(std::unique_lock<std::mutex>& lock) {
  const auto when = std::max(SteadyClock::now() + kIdleBeforeTrim, last_trim_ + kBetweenTrims);
  if (inbox_changed_.wait_until(lock, when, [&] { return stopping_ || !inbox_.empty(); })) return;
  lock.unlock();
  trim_memory();
  last_trim_ = SteadyClock::now();
  to_trim_ = false;
  lock.lock();
}

bool EngineCore::has_more() {
  std::lock_guard lock(mutex_);
  return !stopping_ || !scheduler_->idle() || scheduler_->uncommitted_steps() > 0 || unpublished_ != nullptr;
}

void EngineCore::start_request(std::unique_ptr<LiveRequest>& arrived) {
  LiveRequest& request = *arrived;
  request.id = next_id_++;
  ++requests_total_;
  auto& owner = requests_[request.id];
  owner = std::move(arrived);
  live_grammars_ += request.request.sampling.grammar != nullptr;
  ids_by_rid_[request.request.rid] = request.id;
  if (lengths_) request.draft_length = lengths_->begin(static_cast<int>(requests_.size()));

  if (request.aborted) return refuse(request, aborted_);
  const GenerateRequest& asked = request.request;
  ScheduledRequestSpec spec;
  spec.id = request.id;
  spec.user = &request;
  spec.input_ids = asked.input_embeds != nullptr ? std::move(request.embed_keys) : asked.input_ids;
  spec.max_new_tokens = asked.sampling.max_new_tokens;
  spec.min_new_tokens = asked.sampling.min_new_tokens;
  spec.ignore_eos = asked.sampling.ignore_eos;
  spec.stop_token_ids = asked.sampling.stop_token_ids;
  spec.priority = asked.priority;
  spec.cache_salt = asked.cache_salt;
  spec.adapter = asked.adapter.get();
  spec.logprob_start_len = asked.return_logprob ? asked.logprob_start_len : -1;
  spec.states_from = states_from(asked);
  if (const auto it = ids_by_rid_.find(asked.wait_for_prefix_of); it != ids_by_rid_.end()) {
    spec.wait_for_prefix_of = it->second;
  }
  if (Status added = scheduler_->add(std::move(spec)); !added.ok()) refuse(request, std::move(added));
}

// Ends a request that the scheduler has not seen.
void EngineCore::refuse(LiveRequest& request, Status why) {
  answer_aborted(request, std::move(why));
  forget(request.id);
}

DeviceStep* EngineCore::prepare(const Step& step) {
  DeviceStep& out = *device_steps_[next_device_step_];
  next_device_step_ ^= 1;
  out.step = &step;
  out.status = {};
  out.first_nan.clear();
  out.copies = step.copies;
  out.state_loads = step.state_loads;
  out.state_saves = step.state_saves;
  out.page_events = step.page_events;
  out.resumed.clear();
  out.input_logprobs.clear();
  out.states.clear();
  out.inputs.clear();
  out.sample_slots.clear();
  out.draft_rows.clear();
  propose(step, out);
  out.builder.build(step, out.proposals);
  if (options_.info.reads_pairs) mark_pairs(step, out);
  if (options_.info.takes_position_ids) place_rows(step, out);
  out.sample_rows.assign(step.num_samples, {});
  int logits_row = 0;
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const StepRow& row = step.rows[i];
    prepare_row(row, out);
    want_input_logprobs(row, logits_row, out);
    want_states(row, logits_row, out);
    bring_embeds(row, out.builder.batch().q_indptr[i], out);
    logits_row += row.num_logits + proposal_of(out.proposals, i).size();
  }
  return &out;
}

void EngineCore::mark_pairs(const Step& step, DeviceStep& device_step) {
  second_texts_.clear();
  for (const StepRow& row : step.rows)
    second_texts_.push_back(static_cast<const LiveRequest*>(row.user)->request.second_text_at);
  device_step.builder.mark_second_texts(second_texts_);
}

void EngineCore::prepare_row(const StepRow& row, DeviceStep& device_step) {
  auto& request = *static_cast<LiveRequest*>(row.user);
  device_step.sample_slots.push_back(row.sample_slot);
  if (options_.drafts) {
    device_step.draft_rows.push_back({.state = &request.draft,
                                      .start = row.start,
                                      .num_tokens = row.num_tokens,
                                      .prefill = row.prefill,
                                      .follows = follows(row),
                                      .prompt = request.request.input_ids,
                                      .output = request.output_ids});
  }
  if (row.first_scheduled) request.first_scheduled = SteadyClock::now();
  if (row.sample_slot < 0) return;
  const GenerateRequest& asked = request.request;
  device_step.sample_rows[row.sample_slot] = {
      .state = &request.sampler,
      .logits_row = device_step.builder.sample_rows()[row.sample_slot],
      .position = static_cast<uint64_t>(row.start) + row.num_tokens,
      .top_logprobs_num = asked.top_logprobs_num,
      .want_logprobs = asked.return_logprob,
      .logprob_ids = asked.token_ids_logprob,
      .accept = options_.accept,
  };
  // After a retraction the device may have sampled a token that never counted.
  if (row.prefill && !request.output_ids.empty()) {
    device_step.resumed.emplace_back(&request.sampler, request.output_ids);
  }
}

void EngineCore::end_request(LiveRequest& request, Status why) {
  if (request.answered) return;
  scheduler_->finish(request.id);
  request.pending.text += request.text.flush();
  answer_aborted(request, std::move(why));
}

void EngineCore::fail_steps(const Status& status) {
  LOG_ERROR("a step failed: {}", status.message());
  for (RequestId id : scheduler_->fail_uncommitted()) {
    if (const auto it = requests_.find(id); it != requests_.end()) end_request(*it->second, status);
  }
}

void EngineCore::drop_released() {
  for (void* user : scheduler_->take_released()) {
    const RequestId id = static_cast<LiveRequest*>(user)->id;
    forget(id);
  }
}

void EngineCore::forget(RequestId id) {
  if (options_.proposer != nullptr) options_.proposer->forget(id);
  if (forced_) forced_->forget(id);
  live_grammars_ -= requests_.at(id)->request.sampling.grammar != nullptr;
  requests_.erase(id);
}

}  // namespace warpweave
