// What the engine counts: steps by kind, tokens, and the line it logs now and then.
#include <algorithm>

#include "base/log.h"
#include "engine/engine_core.h"

namespace warpweave {

// A step that checks proposals is one of decode, unless prompts are in it.
StepTotals& EngineCore::totals_of(const DeviceStep& device_step) {
  switch (device_step.builder.batch().mode) {
    case ForwardMode::decode: return decode_steps_;
    case ForwardMode::extend: return prefill_steps_;
    default: break;
  }
  const std::vector<StepRow>& rows = device_step.step->rows;
  const bool prompts = std::any_of(rows.begin(), rows.end(), [](const StepRow& row) { return row.prefill; });
  return prompts ? mixed_steps_ : decode_steps_;
}

void EngineCore::count_step(const DeviceStep& device_step) {
  const ForwardBatch& batch = device_step.builder.batch();
  StepTotals& totals = totals_of(device_step);
  ++totals.steps;
  totals.requests += static_cast<uint64_t>(batch.num_reqs);
  totals.tokens += static_cast<uint64_t>(batch.num_tokens);
  const auto limit =
      std::lower_bound(StepSizes::limits_tokens.begin(), StepSizes::limits_tokens.end(), batch.num_tokens);
  ++step_sizes_.counts[static_cast<size_t>(limit - StepSizes::limits_tokens.begin())];
  totals.device_ms += device_step.device_us / 1000;
  totals.draft_ms += device_step.draft_us / 1000;
  totals.host_ms += device_step.host_us / 1000;
  trace_.record({.launched = device_step.launched_at, .finished = SteadyClock::now(), .host_us = device_step.host_us,
                 .device_us = device_step.device_us, .mode = mode_name(batch.mode), .requests = batch.num_reqs,
                 .tokens = batch.num_tokens});
  if (&totals == &decode_steps_) last_decode_us_ = device_step.device_us;
}

void EngineCore::update_stats() {
  const SchedulerStats scheduled = scheduler_->stats();
  log_progress();
  EngineStats now;
  now.running_reqs = scheduled.running_reqs;
  now.queued_reqs = scheduled.queued_reqs;
  now.used_tokens = scheduled.used_tokens;
  now.evictable_tokens = scheduled.evictable_tokens;
  now.max_total_tokens = options_.info.max_total_tokens;
  now.prompt_tokens_total = scheduled.prompt_tokens_total;
  now.cached_tokens_total = scheduled.cached_tokens_total;
  if (scheduler_->states() != nullptr) now.cached_kv_tokens_total = scheduled.cached_kv_tokens_total;
  now.generation_tokens_total = generated_tokens_;
  now.requests_total = requests_total_;
  now.aborted_requests_total = aborted_total_;
  now.retracted_reqs_total = scheduled.retracted_reqs_total;
  now.evicted_tokens_total = scheduled.evicted_tokens_total;
  now.steps_total = scheduled.steps_total;
  if (options_.proposer != nullptr) now.speculation = speculated_;
  now.step_overhead_us = last_overhead_us_;
  now.decode_steps = decode_steps_;
  now.prefill_steps = prefill_steps_;
  now.mixed_steps = mixed_steps_;
  now.step_sizes = step_sizes_;
  now.accepted_by_position = accepted_by_position_;
  std::lock_guard lock(mutex_);
  generation_rate_.add(seconds_since_start(), now.generation_tokens_total - stats_.generation_tokens_total);
  stats_ = now;
}

double EngineCore::seconds_since_start() const {
  return std::chrono::duration<double>(SteadyClock::now() - started_).count();
}

void EngineCore::log_progress() {
  if (options_.log_interval_s <= 0) return;
  const auto now = SteadyClock::now();
  const double elapsed = std::chrono::duration<double>(now - last_log_).count();
  if (elapsed < options_.log_interval_s) return;
  const uint64_t fresh = generated_tokens_ - generated_at_last_log_;
  last_log_ = now;
  generated_at_last_log_ = generated_tokens_;
  if (fresh == 0) return;
  const SchedulerStats s = scheduler_->stats();
  LOG_INFO("running {}, queued {}, token usage {:.2f}, cache hit rate {:.2f}, {:.1f} tok/s",
           s.running_reqs, s.queued_reqs,
           static_cast<double>(s.used_tokens) / static_cast<double>(options_.info.max_total_tokens),
           s.prompt_tokens_total ? static_cast<double>(s.cached_tokens_total) / s.prompt_tokens_total : 0.0,
           static_cast<double>(fresh) / elapsed);
}

}  // namespace warpweave
