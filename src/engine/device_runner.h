// Where prepared steps run: a device's order of work, as the engine's loop sees it.
//
// launch() takes the steps in order and does not wait for them; wait() returns when that step is
// done and its outputs are set. Steps are owned by the caller and outlive their wait(). One thread
// calls both. Implementations: DeviceWorker (CPU), GpuRunner.
#pragma once

#include <algorithm>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "batch/batch_builder.h"
#include "engine/live_request.h"
#include "model/input_rows.h"
#include "sample/sampler.h"
#include "spec/draft_options.h"

namespace warpweave {

// A prompt position whose log-probability was asked for.
struct InputLogprob {
  LiveRequest* request = nullptr;
  int logits_row = 0;
  int position = 0;         // of the token that this row predicts
  int32_t token_id = 0;
  PositionLogprobs result;
};

// States of rows that follow one another in the logits rows.
struct StateRows {
  LiveRequest* request = nullptr;
  int logits_row = 0;
  int rows = 0;
  int position = 0;            // of the first row's token
  bool add_up = false;         // to one row
  std::vector<float> values;   // out: [rows or 1, hidden]
};

struct DeviceStep {
  explicit DeviceStep(const BatchCache& cache) : builder(cache) {}

  // In: filled by the engine thread before launch().
  const Step* step = nullptr;          // the scheduler's; gone once it is committed
  std::vector<int> sample_slots;       // by row of the step, or -1
  std::vector<Proposal> proposals;     // by row of the step, or empty; the device drafts in place of those it is to
  std::vector<DraftRow> draft_rows;    // by row of the step, for a device that drafts
  BatchBuilder builder;
  std::vector<InputRows> inputs;       // of requests with input_embeds
  std::vector<int32_t> page_events;
  std::vector<PageCopy> copies;
  std::vector<StateCopy> state_loads, state_saves;  // before and after the forward
  std::vector<SampleRow> sample_rows;  // by sample slot
  std::vector<std::pair<SamplerState*, std::vector<int32_t>>> resumed;  // outputs to start from
  double host_us = 0;                  // until launch() returned
  bool waited_for_next = false;        // it is waited for before another is launched, most likely
  SteadyClock::time_point launched_at{};
  // In and out.
  std::vector<InputLogprob> input_logprobs;
  std::vector<StateRows> states;
  // Out: valid after wait().
  std::vector<SampledRow> sampled;  // by sample slot, one each; may be empty where no row is scored
  std::vector<int32_t> sampled_ids;
  std::vector<int> sampled_begin;      // [slots + 1] where each slot's tokens begin, if there were proposals
  Status status;
  std::string first_nan;               // where the model had the first value that is no number, if known
  double overhead_us = 0;              // device time from the last forward's end to this one's start
  double device_us = 0;                // of the whole step
  double draft_us = 0;                 // of that, the draft model's
  double cpu_us = 0, draft_cpu_us = 0; // the same in CPU time of the thread that ran it; 0: the device is no CPU
  SteadyClock::time_point ended_at{};  // when the host knew that it was done
  bool first_of_shape = false;         // something was made for it that later steps use, too: its time tells nothing

  bool done = false;                   // the runner's
};

// Whether a draft model is to be shown what comes of the step.
inline bool is_followed(const DeviceStep& step) {
  return std::any_of(step.draft_rows.begin(), step.draft_rows.end(), [](const DraftRow& row) { return row.follows; });
}

// What a step ends with where memory may have ended.
inline Status step_failure(StatusCode code, const char* why) noexcept {
  try {
    return {code, why};
  } catch (const std::bad_alloc&) {
    return {code, "out of memory"};  // a text that takes none
  }
}

// The failure of a step whose exception is being handled.
inline Status caught_step_failure() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return step_failure(StatusCode::unavailable, "there is not enough memory for this step; retry later");
  } catch (const std::exception& error) {
    return step_failure(StatusCode::internal, error.what());
  }
}

class DeviceRunner {
 public:
  virtual ~DeviceRunner() = default;
  virtual void launch(DeviceStep* step) = 0;
  virtual void wait(DeviceStep* step) = 0;
  // Whether wait() itself runs steps of which DeviceStep::waited_for_next says so: they have not begun before.
  virtual bool runs_within_wait() const { return false; }
  // Any thread; empty where there are no experts, or the device does not count.
  virtual std::vector<ExpertLayerLoad> expert_load() const { return {}; }
};

}  // namespace warpweave
