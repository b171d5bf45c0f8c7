// For tests of the scheduler: a small configuration, requests, and steps that are done as soon as they are scheduled.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "sched/scheduler.h"

namespace warpweave {

using Tokens = std::vector<int32_t>;

inline SchedulerConfig make_config() {
  SchedulerConfig config;
  config.page_size = 4;
  config.num_pages = 64;
  config.context_len = 200;
  return config;
}

inline ScheduledRequestSpec make_spec(RequestId id, int prompt, int max_new, int first_token = -1) {
  ScheduledRequestSpec spec;
  spec.id = id;
  spec.input_ids.resize(prompt);
  std::iota(spec.input_ids.begin(), spec.input_ids.end(),
            first_token < 0 ? static_cast<int>(id) * 1000 : first_token);
  spec.max_new_tokens = max_new;
  return spec;
}

// Commits a step in which every sampled token is `token`.
inline std::vector<StepEvent> commit(Scheduler& scheduler, const Step& step, int32_t token = 7) {
  return scheduler.commit(step, Tokens(step.num_samples, token));
}

inline std::vector<RequestId> ids_of(const Step& step) {
  std::vector<RequestId> ids;
  for (const StepRow& row : step.rows) ids.push_back(row.id);
  return ids;
}

inline void run_to_idle(Scheduler& scheduler) {
  for (int i = 0; i < 10000 && !scheduler.idle(); ++i) {
    const Step& step = scheduler.schedule();
    if (!step.empty()) commit(scheduler, step);
  }
  EXPECT_TRUE(scheduler.idle());
  EXPECT_TRUE(scheduler.audit().ok());
}

}  // namespace warpweave
