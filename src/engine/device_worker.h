// The device's stream: one thread that runs prepared steps in order - copies, forward, sampling -
// while the engine thread prepares the next one.
//
// launch() never blocks; wait() blocks until that step is done. Steps are owned by the caller and
// must outlive their wait(). The model, cache and backend are used by this thread only.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "attention/backend.h"
#include "base/threads.h"
#include "batch/batch_builder.h"
#include "engine/live_request.h"
#include "kv/kv_cache.h"
#include "model/decoder.h"
#include "sample/sampler.h"

namespace warpweave {

// A prompt position whose log-probability was asked for.
struct InputLogprob {
  LiveRequest* request = nullptr;
  int logits_row = 0;
  int position = 0;         // of the token that this row predicts
  int32_t token_id = 0;
  PositionLogprobs result;
};

struct DeviceStep {
  explicit DeviceStep(int page_size) : builder(page_size) {}

  // In: filled by the engine thread before launch().
  const Step* step = nullptr;          // the scheduler's; gone once it is committed
  std::vector<int> sample_slots;       // by row of the step, or -1
  BatchBuilder builder;
  std::vector<PageCopy> copies;
  std::vector<SampleRow> sample_rows;  // by sample slot
  std::vector<std::pair<SamplerState*, std::vector<int32_t>>> resumed;  // outputs to start from
  // In and out.
  std::vector<InputLogprob> input_logprobs;
  // Out: valid after wait().
  std::vector<SampledRow> sampled;     // by sample slot
  std::vector<int32_t> sampled_ids;
  Status status;
  double overhead_us = 0;              // device time from the last forward's end to this one's start

  bool done = false;                   // guarded by the worker's mutex
};

struct DeviceParts {
  std::unique_ptr<DecoderModel> model;
  std::unique_ptr<AttentionBackend> attention;
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<ThreadTeam> team;
};

class DeviceWorker {
 public:
  explicit DeviceWorker(DeviceParts parts);
  ~DeviceWorker();
  DeviceWorker(const DeviceWorker&) = delete;
  DeviceWorker& operator=(const DeviceWorker&) = delete;

  void launch(DeviceStep* step);
  void wait(const DeviceStep* step);

 private:
  void loop();
  void run(DeviceStep& step);
  void compute_input_logprobs(DeviceStep& step);

  DeviceParts parts_;
  Sampler sampler_;
  std::vector<float> logits_;
  std::vector<RowBest> best_;          // argmax by logits row
  std::vector<int32_t> last_sampled_;  // of the step before, for its successor's unknown tokens
  SteadyClock::time_point forward_end_{};

  std::mutex mutex_;
  std::condition_variable launched_;
  std::condition_variable finished_;
  std::deque<DeviceStep*> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace warpweave
