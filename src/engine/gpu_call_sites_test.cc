// On a real GPU every place that calls CUDA's runtime fails once, from start to shutdown: starting
// says what failed, or the engine answers, with an error or without, and the next request is answered; nothing is
// leaked. Models come one after the other, each for the places that none before had. Skipped without a GPU.
#include <gtest/gtest.h>

#include <cstdio>

#include "base/log.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/current_device.h"
#include "device/cuda/testing/failing_cuda.h"
#include "engine/testing/gpu_failure_scene.h"

namespace warpweave {
namespace {

constexpr int kMostPlaces = 500;  // of a model and phase: more are one place taken for many

// Why the engine does not go on as it should; empty: it does.
std::string check(ServedModel& served) {
  const Answer next = ask(served, greedy_requests({some_ids(30, 7)}, 4))[0];
  if (!next.error.ok()) return "the next request: " + next.error.message();
  if (next.ids.size() != 4) return "the next request has " + std::to_string(next.ids.size()) + " tokens";
  const Status audit = served.engine->audit();
  return audit.ok() ? "" : audit.message();
}

class GpuCallSites : public testing::TestWithParam<FailureSetting> {
 protected:
  void SetUp() override {
    if (const auto gpu = probe_cuda_device(); !gpu.ok()) GTEST_SKIP() << gpu.status().message();
    ASSERT_TRUE(init_log("off").ok());
    failing_cuda::fail_nothing();
    auto served = scene_.serve();  // what is made once a process stays
    ASSERT_TRUE(served.ok()) << served.status().message();
    FailureScene::use(*served);
    ASSERT_EQ(check(*served), "");
  }
  void TearDown() override { failing_cuda::fail_nothing(); }

  // Starts with one new place failing each time, until starting meets no other.
  void fail_starts() {
    for (int i = 0; i < kMostPlaces; ++i) {
      const AliveHandles before = failing_cuda::alive();
      failing_cuda::fail_next_place();
      std::string failed;
      {
        auto served = scene_.serve();
        failed = failing_cuda::failed_call();
        failing_cuda::fail_nothing();
        if (failed.empty()) return;
        SCOPED_TRACE(failed);
        ++places_;
        if (served.ok()) {
          FailureScene::use(*served);
          EXPECT_EQ(check(*served), "");
        } else {
          EXPECT_FALSE(served.status().message().empty());
        }
      }
      ASSERT_EQ(failing_cuda::alive(), before) << failed << " at start";
    }
    ADD_FAILURE() << "starting meets new places for ever";
  }

  // The same of what runs after the start, all on one engine, and of its end.
  void fail_steps() {
    const AliveHandles before = failing_cuda::alive();
    {
      auto served = scene_.serve();
      ASSERT_TRUE(served.ok()) << served.status().message();
      for (int i = 0; i < kMostPlaces; ++i) {
        failing_cuda::fail_next_place();
        FailureScene::use(*served);
        const std::string failed = failing_cuda::failed_call();
        failing_cuda::fail_nothing();
        EXPECT_EQ(check(*served), "") << failed;
        if (failed.empty()) break;
        ASSERT_LT(i + 1, kMostPlaces) << "serving meets new places for ever";
        ++places_;
      }
      failing_cuda::fail_next_place();
    }
    places_ += !failing_cuda::failed_call().empty();
    ASSERT_EQ(failing_cuda::alive(), before) << failing_cuda::failed_call() << " at the end";
    failing_cuda::fail_nothing();
  }

  const FailureScene scene_{GetParam()};
  int places_ = 0;  // that failed for the first time here
};

TEST_P(GpuCallSites, EachFailsOnceAndTheNextRequestIsAnswered) {
  const size_t free_before = gpu_memory_bytes()->free;
  fail_starts();
  fail_steps();
  auto served = scene_.serve();  // starts as ever
  ASSERT_TRUE(served.ok()) << served.status().message();
  EXPECT_EQ(check(*served), "");
  served = Status::internal("ended");
  // What the driver keeps of kernels that were loaded meanwhile is not the engine's: tens of MiB once.
  constexpr size_t kKernelBytes = size_t{256} << 20;
  EXPECT_GT(gpu_memory_bytes()->free + kKernelBytes, free_before);
  std::printf("%d places failed for the first time, %d in all\n", places_, failing_cuda::num_failed_places());
}

INSTANTIATE_TEST_SUITE_P(
    Models, GpuCallSites,
    testing::Values(FailureSetting{"llama", "auto", true, true}, FailureSetting{"llama", "fp8_e4m3", false, false},
                    FailureSetting{"llama", "auto", true, true, "", 1, true},
                    FailureSetting{"gemma3", "auto", true, true}, FailureSetting{"qwen3-moe", "auto", false, true},
                    FailureSetting{"qwen3-next", "auto", true, true},
                    FailureSetting{"deepseek-v2-moe", "auto", true, true},
                    FailureSetting{"llama", "auto", true, true, "NGRAM", 4},
                    FailureSetting{"llama", "auto", true, true, "EAGLE", 1},
                    FailureSetting{"llama", "auto", false, true, "EAGLE", 3},
                    FailureSetting{"llama", "auto", true, false, "STANDALONE", 1}));

}  // namespace
}  // namespace warpweave
