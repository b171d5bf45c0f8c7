// Requests that an engine begins all at once, and what came of each, in whatever shape a test wants it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/testing/held_engine.h"
#include "warpweave/engine.h"

namespace warpweave {

// `take(answer, delta)` adds each delta to the answer of its request. Returns when all have ended, in the order of the
// requests; a test fails where one does not end.
template <typename Answer, typename Take>
std::vector<Answer> collect_answers(Engine& engine, const std::vector<GenerateRequest>& requests, Take take) {
  constexpr std::chrono::seconds kPatience{300};  // a loaded machine is slow, no answer comes later
  struct Shared {  // with the sinks, which may outlive a wait that failed
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Answer> answers;
    size_t finished = 0;
  };
  const auto shared = std::make_shared<Shared>();
  shared->answers.resize(requests.size());
  auto held = requests.size() > 1 ? std::make_unique<HeldEngine>(engine) : nullptr;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Status status = engine.submit(requests[i], [shared, i, take](const OutputDelta& delta) {
      std::lock_guard lock(shared->mutex);
      take(shared->answers[i], delta);
      if (!delta.finish) return;
      ++shared->finished;
      shared->changed.notify_all();
    });
    EXPECT_TRUE(status.ok()) << status.message();
  }
  held.reset();
  std::unique_lock lock(shared->mutex);
  EXPECT_TRUE(shared->changed.wait_for(lock, kPatience, [&] { return shared->finished == requests.size(); }));
  return shared->answers;
}

}  // namespace warpweave
