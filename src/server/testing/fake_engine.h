// An Engine without a model, for tests of the server: streams scripted or echoed tokens from a
// thread of its own, one delta per token. Thread-safe as Engine asks; aborts and disconnects are
// counted so that tests can wait for them.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "warpweave/engine.h"

namespace warpweave::server::testing {

struct FakeEngineOptions {
  // The words every request answers with; empty: the prompt's ids come back one by one.
  std::vector<std::string> script = {"Once", " upon", " a", " time"};
  std::chrono::milliseconds token_delay{0};
  bool never_finish = false;             // repeat the script until aborted
  Status submit_error{};                 // returned by submit() when not ok
  Status first_error{};                  // what every request ends with in place of its first token, when not ok
  int max_queued = 1 << 20;
  Status audit{};                        // what audit() says
  EngineInfo info{};
  std::vector<ExpertLayerLoad> expert_load = {};
  EngineStats stats{};                   // what stats() counts on from
  std::optional<int> cached_kv_tokens;   // of each answer, beside 3 cached tokens: a model with recurrent layers
};

class FakeEngine : public Engine {
 public:
  explicit FakeEngine(FakeEngineOptions options = {}) : options_(std::move(options)) {
    EngineInfo& info = options_.info;
    stats_ = options_.stats;
    if (info.model_path.empty()) info.model_path = "fake";
    if (info.served_model_name.empty()) info.served_model_name = info.model_path;
    if (info.context_len == 0) info.context_len = 1024;
    if (info.vocab_size == 0) info.vocab_size = 4096;
    if (info.max_total_tokens == 0) info.max_total_tokens = 65536;
    if (info.num_pages == 0) info.num_pages = 65536;
    if (info.model_type.empty()) info.model_type = "fake";
    if (info.dtype.empty()) info.dtype = "f32";
    if (info.device.empty()) info.device = "cpu: fake";
    thread_ = std::thread([this] { loop(); });
  }
  ~FakeEngine() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  const EngineInfo& info() const override { return options_.info; }

  std::vector<ExpertLayerLoad> expert_load() const override { return options_.expert_load; }

  EngineStats stats() const override {
    std::lock_guard lock(mutex_);
    EngineStats stats = stats_;
    stats.running_reqs = static_cast<int>(live_.size());
    stats.max_total_tokens = options_.info.max_total_tokens;
    return stats;
  }

  Status submit(GenerateRequest request, OutputSink sink) override {
    std::lock_guard lock(mutex_);
    if (!options_.submit_error.ok()) return options_.submit_error;
    if (draining_) return Status::unavailable("the server is shutting down");
    if (request.input_ids.empty()) {
      return Status::invalid_argument("input_ids must hold at least one token", "input_ids");
    }
    const int room = options_.info.context_len + (request.states == StateWish::pooled ? 1 : 0);
    if (static_cast<int>(request.input_ids.size()) >= room) {
      return Status::invalid_argument("the prompt has " + std::to_string(request.input_ids.size()) +
                                          " tokens; the model's context holds " +
                                          std::to_string(options_.info.context_len) +
                                          ": shorten the prompt",
                                      "input_ids");
    }
    if (static_cast<int>(live_.size()) >= options_.max_queued) {
      return Status::resource_exhausted("the queue is full; try again later");
    }
    if (live_.contains(request.rid)) {
      return Status::invalid_argument("rid '" + request.rid + "' is already running", "rid");
    }
    ++stats_.requests_total;
    stats_.prompt_tokens_total += request.input_ids.size();
    submitted_.push_back(request);
    std::string rid = request.rid;
    live_.emplace(rid, Live{std::move(request), std::move(sink)});
    changed_.notify_all();
    return {};
  }

  void abort(const std::string& rid) override {
    std::lock_guard lock(mutex_);
    for (auto& [id, live] : live_) {
      if (rid.empty() || rid == id) live.aborted = true;
    }
    changed_.notify_all();
  }

  bool flush_cache() override {
    std::lock_guard lock(mutex_);
    if (!live_.empty()) return false;
    ++flushes_;
    return true;
  }

  Status audit() override { return options_.audit; }
  Status start_profile(const ProfileRequest&) override { return {}; }
  Result<std::string> stop_profile() override { return std::string("fake.trace.json"); }

  void drain(double deadline_s) override {
    std::unique_lock lock(mutex_);
    draining_ = true;
    auto idle = [&] { return live_.empty(); };
    if (!changed_.wait_for(lock, std::chrono::duration<double>(deadline_s), idle)) {
      for (auto& [id, live] : live_) live.out_of_time = true;
      changed_.notify_all();
      changed_.wait(lock, idle);
    }
  }

  // For tests: every request submitted so far, and waiting for aborts.
  void forget_submitted() {
    std::lock_guard lock(mutex_);
    submitted_.clear();
  }
  std::vector<GenerateRequest> submitted() const {
    std::lock_guard lock(mutex_);
    return submitted_;
  }
  bool wait_for_aborts(uint64_t count, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout,
                             [&] { return stats_.aborted_requests_total >= count; });
  }
  int flushes() const {
    std::lock_guard lock(mutex_);
    return flushes_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Live {
    GenerateRequest request;
    OutputSink sink;
    bool aborted = false;
    bool out_of_time = false;
    int produced = 0;
    Clock::time_point arrival = Clock::now();
  };

  // One token for every live request, then a pause of token_delay.
  void loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || !live_.empty(); });
      if (stopping_) return;
      ++stats_.steps_total;
      std::vector<std::pair<OutputSink, OutputDelta>> deltas;
      for (auto it = live_.begin(); it != live_.end();) {
        OutputDelta delta = next_delta(it->second);
        const bool finished = delta.finish.has_value();
        deltas.emplace_back(it->second.sink, std::move(delta));
        it = finished ? live_.erase(it) : std::next(it);
      }
      lock.unlock();  // a sink may call the engine
      for (auto& [sink, delta] : deltas) sink(std::move(delta));
      deltas.clear();
      lock.lock();
      changed_.notify_all();
      if (options_.token_delay.count() > 0) changed_.wait_for(lock, options_.token_delay);
    }
  }

  OutputDelta next_delta(Live& live) {
    OutputDelta delta;
    delta.cached_kv_tokens = options_.cached_kv_tokens;
    if (delta.cached_kv_tokens) delta.cached_tokens = 3;
    delta.rid = live.request.rid;
    delta.prompt_tokens = static_cast<int>(live.request.input_ids.size());
    delta.e2e_latency_s = std::chrono::duration<double>(Clock::now() - live.arrival).count();
    if (live.aborted || live.out_of_time) {
      ++stats_.aborted_requests_total;
      delta.completion_tokens = live.produced;
      delta.finish = FinishReason{FinishReason::Type::abort, -1, {},
                                  live.aborted ? Status(StatusCode::cancelled, "aborted")
                                               : Status::unavailable("the server is shutting down")};
      return delta;
    }
    if (!options_.first_error.ok()) {
      delta.finish = FinishReason{FinishReason::Type::abort, -1, {}, options_.first_error};
      return delta;
    }
    if (live.request.states == StateWish::pooled) {
      // Of the ids alone, so that equal prompts give equal results.
      for (int i = 0; i < options_.info.pooled_size; ++i) {
        delta.pooled.push_back(static_cast<float>(live.request.input_ids[i % delta.prompt_tokens] % 7 + i));
      }
      delta.finish = FinishReason{FinishReason::Type::length, -1, {}, {}};
      return delta;
    }
    if (live.request.sampling.max_new_tokens == 0) {
      add_states(live, &delta);
      delta.finish = FinishReason{FinishReason::Type::length, -1, {}, {}};
      return delta;
    }
    const bool echo = options_.script.empty();
    const int length =
        echo ? delta.prompt_tokens : static_cast<int>(options_.script.size());
    const int index = live.produced % length;
    const int32_t token = echo ? live.request.input_ids[index] : 100 + index;
    delta.token_ids = {token};
    delta.text = echo ? "<" + std::to_string(token) + ">" : options_.script[index];
    if (live.request.return_logprob) {
      delta.output_logprobs = {logprobs_of(live.request, token)};
      if (live.produced == 0 && live.request.logprob_start_len >= 0) {
        for (size_t i = live.request.logprob_start_len; i < live.request.input_ids.size(); ++i) {
          delta.input_logprobs.push_back(logprobs_of(live.request, live.request.input_ids[i]));
          if (i == 0) {
            delta.input_logprobs.back().chosen.logprob = std::numeric_limits<float>::quiet_NaN();
          }
        }
      }
    }
    ++stats_.generation_tokens_total;
    delta.completion_tokens = ++live.produced;
    if (live.produced >= live.request.sampling.max_new_tokens) {
      delta.finish = FinishReason{FinishReason::Type::length, -1, {}, {}};
    } else if (live.produced >= length && !options_.never_finish) {
      delta.finish = FinishReason{FinishReason::Type::stop, 2, {}, {}};
    }
    if (delta.finish) add_states(live, &delta);
    return delta;
  }

  // The state of position i: i, over and over.
  void add_states(const Live& live, OutputDelta* delta) const {
    if (live.request.states != StateWish::each) return;
    const int positions = delta->prompt_tokens + std::max(delta->completion_tokens - 1, 0);
    for (int i = 0; i < positions; ++i)
      delta->states.insert(delta->states.end(), options_.info.hidden_size, static_cast<float>(i));
  }

  static PositionLogprobs logprobs_of(const GenerateRequest& request, int32_t token) {
    PositionLogprobs logprobs;
    logprobs.chosen = {-0.5f, token};
    for (int i = 0; i < request.top_logprobs_num; ++i) {
      logprobs.top.push_back({-0.5f - static_cast<float>(i), token + i});
    }
    for (int32_t id : request.token_ids_logprob) logprobs.token_ids.push_back({-1.5f, id});
    return logprobs;
  }

  FakeEngineOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Live> live_;
  std::vector<GenerateRequest> submitted_;
  EngineStats stats_;
  int flushes_ = 0;
  bool draining_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace warpweave::server::testing
