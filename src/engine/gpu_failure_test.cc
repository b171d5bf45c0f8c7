// Every call of the CUDA runtime fails once, from start to shutdown: starting says what failed, or requests end with an
// answer or an error, the next one is answered, and nothing is leaked. The runtime is a fake (device/cuda/testing), so
// this needs no GPU; what a real one does after a failed kernel is its driver's matter.
#include <gtest/gtest.h>

#include "base/log.h"
#include "device/cuda/testing/fake_cuda.h"
#include "engine/testing/gpu_failure_scene.h"

namespace warpweave {
namespace {

using Setting = FailureSetting;

class GpuFailure : public testing::TestWithParam<Setting> {
 protected:
  Result<ServedModel> serve() const { return scene_.serve(); }
  void use(ServedModel& served) const { scene_.use(served); }

  // Why the engine is not as it should be after a failure; empty: it is.
  static std::string check(ServedModel& served) {
    const bool failed_before = !fake_cuda::failed_call().empty();
    Answer next = ask(served, greedy_requests({some_ids(30, 7)}, 4))[0];
    const bool failed_now = !failed_before && !fake_cuda::failed_call().empty();
    if (failed_now) next = ask(served, greedy_requests({some_ids(30, 8)}, 4))[0];  // the failure may have been its own
    if (!next.error.ok()) return "the next request: " + next.error.message();
    if (next.ids.size() != 4) return "the next request has " + std::to_string(next.ids.size()) + " tokens";
    const Status audit = served.engine->audit();
    return audit.ok() ? "" : audit.message();
  }

  const FailureScene scene_{GetParam()};
};

// Serves with each call failing once, until all have.
class GpuFailureWalk : public GpuFailure {
 protected:
  void SetUp() override {
    ASSERT_TRUE(init_log("critical").ok());
    fake_cuda::fail_call(0);
    auto served = serve();  // what is made once a process stays
    ASSERT_TRUE(served.ok()) << served.status().message();
    use(*served);
    ASSERT_EQ(check(*served), "");
  }

  template <typename Look>
  void walk(fake_cuda::After after, Look&& look) {
    const fake_cuda::Alive before = fake_cuda::alive();
    int at_start = 0, later = 0;
    for (int64_t number = 1;; ++number) {
      fake_cuda::fail_call(number, after);
      {
        auto served = serve();
        if (served.ok()) {
          use(*served);
          EXPECT_EQ(look(*served), "") << "call " << number << ", " << fake_cuda::failed_call();
        } else {
          EXPECT_FALSE(served.status().message().empty()) << number;
          EXPECT_FALSE(fake_cuda::failed_call().empty()) << served.status().message();
        }
        ++(served.ok() ? later : at_start);
      }
      ASSERT_EQ(fake_cuda::alive(), before) << "call " << number << ", " << fake_cuda::failed_call();
      if (fake_cuda::failed_call().empty()) break;
    }
    std::printf("%d calls failed the start, %d did not\n", at_start, later);
    EXPECT_GT(at_start, 10);
    EXPECT_GT(later, 100);
  }
};

TEST_P(GpuFailureWalk, OneFailureIsSaidAndTheNextRequestAnswered) { walk(fake_cuda::After::works, check); }

TEST_P(GpuFailureWalk, ALostDeviceEndsRequestsAndLeaksNothing) {
  walk(fake_cuda::After::lost, [](ServedModel& served) -> std::string {
    if (fake_cuda::failed_call().empty()) return "";
    const Answer next = ask(served, greedy_requests({some_ids(30, 7)}, 4))[0];
    return next.error.ok() ? "a request on a lost device has no error" : "";
  });
}

INSTANTIATE_TEST_SUITE_P(
    Models, GpuFailureWalk,
    testing::Values(Setting{"llama", "auto", true, true}, Setting{"llama", "fp8_e4m3", false, false},
                    Setting{"llama", "auto", true, true, "", 1, true}, Setting{"gemma3", "auto", true, true},
                    Setting{"qwen3-moe", "auto", false, true}, Setting{"qwen3-next", "auto", true, true},
                    Setting{"deepseek-v2-moe", "auto", true, true}));

INSTANTIATE_TEST_SUITE_P(Speculation, GpuFailureWalk,
                         testing::Values(Setting{"llama", "auto", true, true, "NGRAM", 4},
                                         Setting{"llama", "auto", true, true, "EAGLE", 1},
                                         Setting{"llama", "auto", false, true, "EAGLE", 3},
                                         Setting{"llama", "auto", true, false, "STANDALONE", 1}));

}  // namespace
}  // namespace warpweave
