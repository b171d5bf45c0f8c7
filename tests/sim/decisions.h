// What a scheduler decided, as one number: who computes which tokens when, what is copied, cached, evicted and told.
// Which pages and slots it takes for that does not count.
#pragma once

#include <cstdint>

#include "sched/scheduler.h"

namespace warpweave::sim {

class Decisions {
 public:
  void add(const Step& step) {
    for (const StepRow& row : step.rows) {
      add(row.id, row.start, row.num_tokens, row.num_logits);
      add(row.sample_slot, row.future_slot, row.max_proposals, row.num_pages);
      add(row.prefill, row.first_scheduled);
    }
    for (const PageCopy& copy : step.copies) add(copy.num_tokens);
    for (const StateCheckpoint& checkpoint : step.state_checkpoints) add(checkpoint.num_tokens);
    add(step.state_loads.size(), step.state_saves.size());
  }
  void add(const StepEvent& event) {
    add(event.id, event.row, event.index, event.token);
    add(event.has_token, static_cast<int>(event.finish), event.cached_tokens, event.retractions);
  }
  void add(const SchedulerStats& stats) {
    add(stats.running_reqs, stats.queued_reqs, stats.used_tokens, stats.evictable_tokens);
    add(stats.prompt_tokens_total, stats.cached_tokens_total, stats.retracted_reqs_total, stats.evicted_tokens_total);
  }
  uint64_t value() const { return value_; }

 private:
  template <typename... Numbers>
  void add(Numbers... numbers) {
    ((value_ = (value_ ^ static_cast<uint64_t>(numbers)) * 0x100000001b3u, value_ ^= value_ >> 31), ...);
  }
  uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace warpweave::sim
