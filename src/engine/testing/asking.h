// Requests sent to a served model all at once, and what it answered, for the tests of serving.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"
#include "engine/testing/held_engine.h"

namespace warpweave {

using Ids = std::vector<int32_t>;

struct Answer {
  Ids ids;
  std::vector<float> logprobs;  // of the ids, where they were asked for
  int cached_tokens = 0;
  std::optional<int> cached_kv_tokens;
  int retractions = 0;
  Status error;
  // Of the same text, both without an error: what was cached may differ.
  bool operator==(const Answer& other) const { return ids == other.ids && error.ok() && other.error.ok(); }
};
inline void PrintTo(const Answer& answer, std::ostream* out) {
  *out << answer.cached_tokens << " cached:";
  for (int32_t id : answer.ids) *out << ' ' << id;
  if (!answer.error.ok()) *out << ' ' << answer.error.message();
}

// `prompt` continued greedily by `new_tokens`, whatever they are.
inline GenerateRequest greedy_request(const std::string& rid, const Ids& prompt, int new_tokens) {
  GenerateRequest request;
  request.rid = rid;
  request.input_ids = prompt;
  request.sampling.temperature = 0;
  request.sampling.max_new_tokens = new_tokens;
  request.sampling.ignore_eos = true;
  return request;
}

// Submits all requests on construction; their answers come in the same order. Any thread may wait.
class Asking {
 public:
  Asking(ServedModel& served, const std::vector<GenerateRequest>& requests) : answers_(requests.size()) {
    for (size_t i = 0; i < requests.size(); ++i) {
      const Status status = served.engine->submit(requests[i], [this, i](const OutputDelta& delta) { take(i, delta); });
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
  // Until this one has said something.
  void wait_for_first_token(size_t request) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return !answers_[request].ids.empty(); }));
  }
  std::vector<Answer> wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return finished_ == answers_.size(); }));
    return answers_;
  }

 private:
  static constexpr std::chrono::seconds kPatience{120};  // a loaded machine is slow, no answer comes later

  void take(size_t i, const OutputDelta& delta) {
    std::lock_guard lock(mutex_);
    Answer& answer = answers_[i];
    answer.ids.insert(answer.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    for (const PositionLogprobs& logprob : delta.output_logprobs) answer.logprobs.push_back(logprob.chosen.logprob);
    answer.cached_tokens = delta.cached_tokens;
    answer.cached_kv_tokens = delta.cached_kv_tokens;
    answer.retractions = delta.total_retractions;
    if (delta.finish) answer.error = delta.finish->error;
    finished_ += delta.finish.has_value();
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t finished_ = 0;
  std::vector<Answer> answers_;
};

inline std::vector<Answer> ask(ServedModel& served, const std::vector<GenerateRequest>& requests) {
  return Asking(served, requests).wait();
}

// The same where all of them begin with one step, whatever else the machine does.
inline std::vector<Answer> ask_together(ServedModel& served, const std::vector<GenerateRequest>& requests) {
  auto held = std::make_unique<HeldEngine>(*served.engine);
  Asking asking(served, requests);
  held.reset();
  return asking.wait();
}

inline std::vector<GenerateRequest> greedy_requests(const std::vector<Ids>& prompts, int new_tokens) {
  std::vector<GenerateRequest> requests;
  for (const Ids& prompt : prompts) {
    requests.push_back(greedy_request(std::to_string(requests.size()), prompt, new_tokens));
  }
  return requests;
}

// Greedy answers to all prompts at once, in their order.
inline std::vector<Answer> ask(ServedModel& served, const std::vector<Ids>& prompts, int new_tokens) {
  return ask(served, greedy_requests(prompts, new_tokens));
}

// Tokens of the tiny families' vocabularies, the same for equal `seed`.
inline Ids some_ids(int count, int seed) {
  Ids ids(count);
  for (int i = 0; i < count; ++i) ids[i] = 2 + (i * 37 + i * i * seed + seed * 11) % 90;
  return ids;
}

inline Ids joined(Ids first, const Ids& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace warpweave
