// What came of a step: first the part that the next step depends on, then what requests are told.
#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "base/log.h"
#include "base/prefetch.h"
#include "engine/engine_core.h"

namespace warpweave {

// What the next step depends on.
void EngineCore::commit(DeviceStep& device_step) {
  if (live_grammars_ > 0) grammar_masks_.wake();  // all tokens of the step are sampled
  const std::vector<StepRow>& rows = device_step.step->rows;
  for (const StepRow& row : rows) prefetch_decoding(*static_cast<const LiveRequest*>(row.user));
  last_overhead_us_ = device_step.overhead_us;
  count_step(device_step);
  count_proposals(device_step);
  request_ended_ = false;
  keep_prompt_rows(device_step);
  for (const StepRow& row : rows) prefetch_end(static_cast<const LiveRequest*>(row.user)->output_ids);
  if (running_ == nullptr) idle_since_ = device_step.ended_at;
  events_ = scheduler_->commit(*device_step.step, device_step.sampled_ids, device_step.sampled_begin);
  for (const StepEvent& event : events_) {
    auto& request = *static_cast<LiveRequest*>(event.user);
    if (event.has_token && !request.answered) request.output_ids.push_back(event.token);
  }
  unpublished_ = &device_step;
}

// And what requests are told.
void EngineCore::publish() {
  DeviceStep* const device_step = std::exchange(unpublished_, nullptr);
  if (device_step == nullptr) return;
  const std::span<const StepEvent> events = std::exchange(events_, {});
  for (size_t i = 0; i < events.size(); ++i) {
    const bool last_of_step = i + 1 == events.size() || events[i + 1].id != events[i].id;
    publish_event(events[i], *device_step, last_of_step);
  }
}

void EngineCore::publish_event(const StepEvent& event, DeviceStep& device_step, bool last_of_step) {
  auto& request = *static_cast<LiveRequest*>(event.user);
  if (request.answered) return;  // a stop string ended it at an earlier token of the step, or it was aborted since
  request.cached_tokens = event.cached_tokens;
  request.cached_kv_tokens = event.cached_kv_tokens;
  request.retractions = event.retractions;
  const bool ends = event.finish != StepEvent::Finish::none;
  if (event.finish == StepEvent::Finish::failed || (ends && !states_are_finite(request))) {
    return fail_request(request, event, device_step);
  }
  std::optional<FinishReason> finish;
  if (event.has_token) {
    ++generated_tokens_;
    ++request.num_published;
    request.pending.token_ids.push_back(event.token);
    if (request.request.return_logprob) {
      const int slot = device_step.sample_slots[event.row];
      const int first = device_step.sampled_begin.empty() ? slot : device_step.sampled_begin[slot];
      request.pending.output_logprobs.push_back(std::move(device_step.sampled[first + event.index].logprobs));
    }
    const bool trimmed = event.finish == StepEvent::Finish::stop && !request.request.sampling.no_stop_trim;
    if (!trimmed) {
      TextStream::Piece piece = request.text.push(event.token);
      request.pending.text += piece.text;
      if (piece.matched_stop) {
        finish.emplace();
        finish->matched_string = *piece.matched_stop;
        scheduler_->finish(event.id);
      }
    }
  }
  if (!finish && event.finish != StepEvent::Finish::none) {
    finish.emplace();
    if (event.finish == StepEvent::Finish::stop) {
      finish->matched_token = event.token;
    } else {
      finish->type = FinishReason::Type::length;
    }
    request.pending.text += request.text.flush();
  }
  if (finish) {
    answer(request, std::move(*finish));
  } else if (request.request.stream && last_of_step &&
             static_cast<int>(request.pending.token_ids.size()) >= options_.stream_interval_tokens) {
    emit(request);
  }
}

// The device found no token for this request: its own masks leave none, or the model's logits are no
// numbers. The others of the step are not concerned.
void EngineCore::fail_request(LiveRequest& request, const StepEvent& event, const DeviceStep& step) {
  Status error;
  if (event.token == kNoAllowedToken) {
    std::string why =
        "no token may follow: the grammar, allowed_token_ids, bad_words, logit_bias and the minimum of new "
        "tokens together exclude every one";
    const bool has_grammar = request.request.sampling.grammar != nullptr;
    if (has_grammar) why += ", or the grammar is so ambiguous (s ::= s s) that to match this text takes too much work";
    error = Status::invalid_argument(std::move(why), has_grammar ? "" : "allowed_token_ids");
  } else {
    const std::string where = step.first_nan.empty()
                                  ? std::string("--enable-nan-detection names the layer")
                                  : "the first is in " + step.first_nan;
    error = Status::internal("the model's result for this request is not a number (NaN); " + where);
    LOG_ERROR("request {}: {}", log_safe(request.request.rid, 64), error.message());
  }
  request.pending.text += request.text.flush();
  answer_aborted(request, std::move(error));
}

// Where memory ends in here, nothing is lost and the answer can be tried again.
void EngineCore::answer(LiveRequest& request, FinishReason reason) {
  if (request.answered) return;
  if (reason.type != FinishReason::Type::abort) hand_over_states(request);
  request.pending.finish = std::move(reason);
  OutputDelta delta = take_delta(request);
  request.answered = request_ended_ = true;
  ids_by_rid_.erase(request.request.rid);
  {
    std::lock_guard lock(mutex_);
    live_rids_.erase(request.request.rid);
    if (live_rids_.empty()) idle_changed_.notify_all();
  }
  pass_on(request, std::move(delta));
}

// Counted behind the answer, which may be tried again.
void EngineCore::answer_aborted(LiveRequest& request, Status why) {
  if (request.answered) return;
  FinishReason reason;
  reason.type = FinishReason::Type::abort;
  reason.error = std::move(why);
  answer(request, std::move(reason));
  ++aborted_total_;
}

void EngineCore::emit(LiveRequest& request) { pass_on(request, take_delta(request)); }

// What is pending, or it stays pending and std::bad_alloc is thrown.
OutputDelta EngineCore::take_delta(LiveRequest& request) {
  OutputDelta& delta = request.pending;
  delta.rid = request.request.rid;
  delta.input_logprobs.reserve(request.input_logprobs.size() + 1);
  if (!request.input_logprobs.empty() && request.request.logprob_start_len == 0) {
    // Nothing predicts the first token of a prompt.
    PositionLogprobs first;
    first.chosen = {std::numeric_limits<float>::quiet_NaN(), request.request.input_ids[0]};
    delta.input_logprobs.push_back(std::move(first));
  }
  std::move(request.input_logprobs.begin(), request.input_logprobs.end(),
            std::back_inserter(delta.input_logprobs));
  request.input_logprobs.clear();
  request.input_logprobs_sent = true;
  delta.prompt_tokens = static_cast<int>(request.request.input_ids.size());
  delta.completion_tokens = request.num_published;
  delta.cached_tokens = request.cached_tokens;
  if (scheduler_->states() != nullptr) delta.cached_kv_tokens = request.cached_kv_tokens;
  delta.total_retractions = request.retractions;
  if (options_.proposer != nullptr) delta.speculation = request.speculated;
  const auto seconds = [&](SteadyClock::time_point to) {
    return std::chrono::duration<double>(to - request.arrival).count();
  };
  if (request.first_scheduled != SteadyClock::time_point{}) {
    delta.queue_time_s = seconds(request.first_scheduled);
  }
  delta.e2e_latency_s = seconds(SteadyClock::now());
  return std::exchange(request.pending, {});
}

// A sink answers its client itself when it fails; the engine only lets go of it.
void EngineCore::pass_on(LiveRequest& request, OutputDelta delta) noexcept {
  try {
    request.sink(std::move(delta));
  } catch (const std::exception& error) {
    LOG_ERROR("an answer could not be passed on: {}", error.what());
  }
}

}  // namespace warpweave
