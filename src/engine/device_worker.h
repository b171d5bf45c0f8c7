// The CPU as a device: one thread that runs prepared steps in order - copies, forward, sampling -
// while the engine thread prepares the next one. A step that the engine only waits for is run by
// the engine's own thread: to wake another and to be woken takes time that a small model's step
// feels. The model, cache and backend are used by one of the two at a time.
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
#include "engine/device_runner.h"
#include "engine/verify.h"
#include "engine/widest_step.h"
#include "kv/kv_cache.h"
#include "kv/kv_canary.h"
#include "model/decoder.h"
#include "sample/sampler.h"
#include "spec/drafter.h"

namespace warpweave {

struct DeviceParts {
  std::unique_ptr<DecoderModel> model;
  std::unique_ptr<AttentionBackend> attention;
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<ThreadTeam> team;
  std::unique_ptr<KvCanary> canary;  // null: none
  std::unique_ptr<HostRecurrent> recurrent;  // null: the model has no recurrent layers
  std::unique_ptr<Drafter> drafter;  // null: no draft model
};

class DeviceWorker : public DeviceRunner {
 public:
  explicit DeviceWorker(DeviceParts parts);
  ~DeviceWorker() override;
  DeviceWorker(const DeviceWorker&) = delete;
  DeviceWorker& operator=(const DeviceWorker&) = delete;

  // Runs a made-up step of that size on the device's thread, so that the buffers of a step are as large as they will
  // be. Before the first launch(). Gives the bytes that became resident. Errors: `unavailable` where memory does not
  // suffice.
  Result<int64_t> rehearse(const WidestStep& widest);

  LogitsHead logits_head() const;

  void launch(DeviceStep* step) override;
  void wait(DeviceStep* step) override;
  bool runs_within_wait() const override { return true; }
  std::vector<ExpertLayerLoad> expert_load() const override {
    const ExpertLoad* load = parts_.model->expert_load();
    return load != nullptr ? load->summary() : std::vector<ExpertLayerLoad>();
  }

 private:
  void loop();
  struct Rehearsal {
    const WidestStep& widest;
    Status status;
    bool done = false;
  };
  void run(Rehearsal& rehearsal);
  void finish(bool& done);
  void run_or_fail(DeviceStep& step) noexcept;
  void run(DeviceStep& step);
  void take_states(DeviceStep& step);
  int block_end(const DeviceStep& step, int first, int rows) const;
  void take_logits(DeviceStep& step);
  void sample_block(int first_row, int rows, DeviceStep& step);
  Status keep_accepted(const DeviceStep& step);
  Status draft(DeviceStep& step);
  Status observe(DeviceStep& step);
  void compute_input_logprobs(int first_row, int rows, DeviceStep& step);

  DeviceParts parts_;
  const int logits_block_rows_;
  Sampler sampler_;
  VerifyWalk walk_;
  std::vector<float> states_;          // of a block of rows that are added up
  std::vector<float> logits_;          // of a block of rows
  std::vector<RowBest> best_;          // argmax by row of the block
  std::vector<int> block_slots_;       // sample slots whose rows are in the block
  std::vector<SampleRow> block_rows_;
  std::vector<SampledRow> block_sampled_;
  std::vector<ObservedRow> observed_;
  std::vector<int32_t> accepted_;      // by request of a step with proposals: the last accepted node
  std::vector<int32_t> last_sampled_;  // of the step before, for its successor's unknown tokens
  SteadyClock::time_point forward_end_{};
  bool last_failed_ = false;           // the step before left no last_sampled_

  std::mutex mutex_;
  std::condition_variable launched_;
  std::condition_variable finished_;
  Rehearsal* rehearsal_ = nullptr;     // asked for and not begun
  std::deque<DeviceStep*> queue_;
  DeviceStep* left_ = nullptr;         // launched, and left to who waits for it
  bool running_ = false;               // the thread has a step
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace warpweave
