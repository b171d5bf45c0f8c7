// The engine's loop. One screen tells it all: take what arrived, schedule, build, launch, and while
// that runs publish what the step before produced.
//
// Threads: submit/abort/flush_cache/stats/drain come from anywhere and pass through an inbox; all
// state below the line "engine thread only" belongs to loop(). Sinks are called from loop().
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/device_runner.h"
#include "engine/embed_keys.h"
#include "engine/forced_proposer.h"
#include "engine/live_request.h"
#include "engine/step_trace.h"
#include "engine/token_rate.h"
#include "model/pooling.h"
#include "sched/scheduler.h"
#include "spec/proposer.h"
#include "text/tokenizer.h"
#include "warpweave/engine.h"

namespace warpweave {

struct EngineCoreOptions {
  EngineInfo info;
  SchedulerConfig scheduler;
  BatchCache batch_cache;
  const Tokenizer* tokenizer = nullptr;  // not owned; null: ids only
  int stream_interval_tokens = 1;
  uint64_t random_seed = 0;
  double log_interval_s = 10;
  Proposer* proposer = nullptr;          // null: none; else scheduler.max_proposals > 0
  std::unique_ptr<Proposer> owned_proposer;  // what `proposer` points to, or null: owned by others
  AcceptThresholds accept;                   // when a guess is kept
  bool drafts = false;                   // the device's draft model guesses; `proposer` only says how many tokens
  std::optional<AdaptiveOptions> adaptive;  // chooses how many are guessed; unset: as many as fit
  bool proposes_forced = false;          // what grammars force is proposed; without a proposer only where that pays
  double step_cost_rows = 1;             // a step's fixed time, as the number of rows that take as long
  Pooler pooler;                         // for requests that ask for pooled states (embeddings)
};

class EngineCore : public Engine {
 public:
  EngineCore(EngineCoreOptions options, std::unique_ptr<DeviceRunner> runner);
  ~EngineCore() override;

  const EngineInfo& info() const override { return options_.info; }
  EngineStats stats() const override;
  std::vector<ExpertLayerLoad> expert_load() const override { return runner_->expert_load(); }
  Status submit(GenerateRequest request, OutputSink sink) override;
  void abort(const std::string& rid) override;
  bool flush_cache() override;
  void drain(double deadline_s) override;
  Status audit() override;
  Status start_profile(const ProfileRequest& request) override { return trace_.start(request); }
  Result<std::string> stop_profile() override { return trace_.stop(); }

 private:
  struct Inbox {
    std::vector<std::unique_ptr<LiveRequest>> arrived;
    std::vector<std::string> aborted;  // rids of requests taken earlier; those in `arrived` are marked instead
    bool abort_all = false;            // all taken earlier
    void mark_all_aborted() noexcept;
    bool out_of_time = false;  // draining took too long: running requests are ended
    std::vector<std::promise<bool>> flushes;
    std::vector<std::promise<Status>> audits;
    bool empty() const {
      return arrived.empty() && aborted.empty() && !abort_all && !out_of_time && flushes.empty() && audits.empty();
    }
  };

  void loop();
  void run_step();
  void recover(const Status& why) noexcept;
  void reset(const Status& why);
  void wait(DeviceStep* step);
  std::chrono::microseconds patience() const;
  bool take_inbox(std::chrono::microseconds patience);
  void abort_taken();
  void trim_when_idle(std::unique_lock<std::mutex>& lock);
  bool has_more();
  void start_request(std::unique_ptr<LiveRequest>& arrived);
  void refuse(LiveRequest& request, Status why);
  DeviceStep* prepare(const Step& step);
  void propose(const Step& step, DeviceStep& device_step);
  bool anyone_guesses();
  bool follows(const StepRow& row) const;
  bool pays_to_jump();
  ProposalCall proposal_call(const LiveRequest& request, int max_tokens) const;
  void plan_lengths(const Step& step);
  void learn_lengths(const DeviceStep& device_step);
  void mark_pairs(const Step& step, DeviceStep& device_step);
  void prepare_row(const StepRow& row, DeviceStep& device_step);
  void want_input_logprobs(const StepRow& row, int first_logits_row, DeviceStep& device_step);
  int states_from(const GenerateRequest& request) const;
  void name_embeds(LiveRequest& request);
  void place_rows(const Step& step, DeviceStep& device_step);
  static void bring_embeds(const StepRow& row, int first_token_row, DeviceStep& device_step);
  void want_states(const StepRow& row, int first_logits_row, DeviceStep& device_step);
  void keep_prompt_rows(DeviceStep& device_step);
  bool states_are_finite(const LiveRequest& request) const;
  void hand_over_states(LiveRequest& request);
  StepTotals& totals_of(const DeviceStep& device_step);
  void count_step(const DeviceStep& device_step);
  void count_proposals(const DeviceStep& device_step);
  void commit(DeviceStep& device_step);
  void publish();
  void publish_event(const StepEvent& event, DeviceStep& device_step, bool last_of_step);
  void fail_request(LiveRequest& request, const StepEvent& event, const DeviceStep& step);
  void answer(LiveRequest& request, FinishReason reason);
  void answer_aborted(LiveRequest& request, Status why);
  void emit(LiveRequest& request);
  OutputDelta take_delta(LiveRequest& request);
  void pass_on(LiveRequest& request, OutputDelta delta) noexcept;
  void fail_steps(const Status& status);
  void end_request(LiveRequest& request, Status why);
  void drop_released();
  void forget(RequestId id);
  void update_stats();
  void log_progress();
  double seconds_since_start() const;
  Status check(const GenerateRequest& request) const;
  Status check_states(const GenerateRequest& request) const;
  Status check_embeds(const GenerateRequest& request) const;
  Status check_position_ids(const GenerateRequest& request) const;

  const EngineCoreOptions options_;

  mutable std::mutex mutex_;  // guards inbox_, live_rids_, draining_, stopping_, stats_, generation_rate_
  std::condition_variable inbox_changed_;
  std::condition_variable idle_changed_;
  Inbox inbox_;
  std::unordered_set<std::string> live_rids_;
  bool draining_ = false;
  bool stopping_ = false;
  EngineStats stats_;
  TokenRate generation_rate_;
  const SteadyClock::time_point started_ = SteadyClock::now();
  std::atomic<uint64_t> next_seed_;
  EmbedKeys embed_keys_{options_.info.vocab_size};  // of input_embeds
  GrammarMaskThread grammar_masks_;
  StepTrace trace_;
  // Made ahead: when they are needed there may be no memory left for a text.
  const Status out_of_memory_{StatusCode::unavailable, "the server ran out of memory; retry later"};
  const Status aborted_{StatusCode::cancelled, "the request was aborted"};
  const Status engine_failed_{StatusCode::internal, "the engine failed; retry later"};

  // Engine thread only.
  std::unique_ptr<Scheduler> scheduler_;
  bool to_trim_ = false;          // a step has run since last_trim_
  SteadyClock::time_point last_trim_{};
  Inbox taken_;                   // taken from inbox_, being worked on; a member so that no failure loses it
  DeviceStep* running_ = nullptr; // launched, and not committed yet
  DeviceStep* unpublished_ = nullptr;  // committed: what came of it is known to the engine, and to nobody else yet
  std::span<const StepEvent> events_;  // of that, the scheduler's
  std::array<DeviceStep*, 2> launched_{};  // launched steps whose end was not waited for
  std::unordered_map<RequestId, std::unique_ptr<LiveRequest>> requests_;
  std::unordered_map<std::string, RequestId> ids_by_rid_;
  RequestId next_id_ = 1;
  std::array<std::unique_ptr<DeviceStep>, 2> device_steps_;
  int next_device_step_ = 0;
  std::vector<int> second_texts_; // mark_pairs(): a value for each row of the step
  std::vector<RowPlaces> places_; // place_rows(): the same
  std::optional<ForcedProposer> forced_;
  int live_grammars_ = 0;         // requests that have one
  int steps_unlooked_ = 0;        // since pays_to_jump() last looked at what grammars force
  int vain_looks_ = 0;            // looks in a row that found nothing forced
  std::unique_ptr<LengthPlanner> lengths_;  // null: as many guesses as there is room for
  SteadyClock::time_point idle_since_{};  // the device has nothing to do since then; unset: it has, or the engine slept
  SteadyClock::time_point last_step_end_{};  // of the step published last; kept for lengths_ alone
  size_t last_decode_rows_ = 0;   // its rows; 0: there were prompts among them
  std::vector<LengthState*> planned_;  // of a step's requests that may guess
  uint64_t generated_tokens_ = 0;
  SpeculationCounts speculated_;
  decltype(EngineStats::accepted_by_position) accepted_by_position_{};
  uint64_t requests_total_ = 0;
  uint64_t aborted_total_ = 0;
  double last_overhead_us_ = 0;
  double last_decode_us_ = 0;     // of the device
  bool request_ended_ = false;    // with the step published last
  StepTotals decode_steps_, prefill_steps_, mixed_steps_;
  StepSizes step_sizes_;
  SteadyClock::time_point last_log_ = SteadyClock::now();
  uint64_t generated_at_last_log_ = 0;

  std::unique_ptr<DeviceRunner> runner_;
  std::thread thread_;  // last: it starts when everything above is there
};

}  // namespace warpweave
