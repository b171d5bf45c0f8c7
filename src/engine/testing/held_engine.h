// An engine held between two steps, for tests whose result depends on which requests run at a time.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>

#include "warpweave/engine.h"

namespace warpweave {

// What is submitted while this lives begins with the same step, however slowly it is submitted: the engine hands out
// answers between steps, and waits in that of a request of one token.
class HeldEngine {
 public:
  explicit HeldEngine(Engine& engine) {
    GenerateRequest request;
    request.rid = "holds the engine";
    request.input_ids = {1};
    request.sampling.max_new_tokens = 1;
    const Status status = engine.submit(std::move(request), [state = state_](const OutputDelta&) {
      if (!state->held.exchange(true)) state->reached.set_value();
      state->released.wait();
    });
    EXPECT_TRUE(status.ok()) << status.message();
    if (status.ok()) {
      EXPECT_EQ(state_->reached.get_future().wait_for(kPatience), std::future_status::ready);
    }
  }
  HeldEngine(const HeldEngine&) = delete;
  HeldEngine& operator=(const HeldEngine&) = delete;
  ~HeldEngine() { state_->release.set_value(); }

 private:
  static constexpr std::chrono::minutes kPatience{2};  // a loaded machine is slow
  // With the answer's sink, which may outlive a wait that failed.
  struct State {
    std::atomic<bool> held = false;
    std::promise<void> reached, release;
    std::shared_future<void> released = release.get_future().share();
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace warpweave
