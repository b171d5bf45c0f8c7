// Every allocation that a request, an abort and a shutdown make, on any thread of the engine, fails
// once: everybody is answered or told, no page is lost, and the next request gets its tokens.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/testing/failing_allocator.h"
#include "engine/engine_impl.h"

namespace warpweave {
namespace {

using testing::AllocationFailure;
using testing::FailOn;

constexpr const char* kModel = "models/tale-llama";
constexpr int kMaxRuns = 3000;

ServedModel serve(bool overlap = true) {
  ServerArgs args;
  args.dtype = "float32";
  args.model_path = kModel;
  args.threads = 2;
  args.max_total_tokens = 512;
  args.disable_overlap_schedule = !overlap;
  auto served = create_engine({.args = args, .model_path = kModel, .on_weights_progress = {}});
  EXPECT_TRUE(served.ok()) << served.status().message();
  return std::move(served).value();
}

GenerateRequest request_of(int new_tokens) {
  static int number = 0;
  GenerateRequest request;
  request.rid = "a rid that does not fit into a string's own bytes " + std::to_string(++number);
  request.input_ids = {5, 6, 7, 8, 9};
  request.sampling.max_new_tokens = new_tokens;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.stop = {"a stop string that never comes"};
  request.sampling.repetition_penalty = 1.01f;
  request.return_logprob = true;
  request.logprob_start_len = 0;
  request.top_logprobs_num = 3;
  return request;
}

// What a sink has seen; written without allocating.
struct Seen {
  std::array<int32_t, 64> ids{};
  std::atomic<int> count{0};
  std::atomic<int> finishes{0};
  std::atomic<bool> aborted{false};
};

// Submits under a failing allocation; returns whether one failed. The sink is heard to its finish,
// or until the engine has let go of it.
bool run(Engine& engine, int new_tokens, bool abort, const std::shared_ptr<Seen>& seen) {
  GenerateRequest request = request_of(new_tokens);
  const std::string rid = request.rid;
  auto alive = std::make_shared<int>(0);
  OutputSink sink = [seen, alive](OutputDelta delta) {
    for (const int32_t id : delta.token_ids) seen->ids[seen->count++ % 64] = id;
    if (!delta.finish) return;
    seen->aborted = delta.finish->type == FinishReason::Type::abort;
    ++seen->finishes;
  };
  AllocationFailure failure(FailOn::every_thread);
  Status status;
  try {
    status = engine.submit(std::move(request), std::move(sink));
  } catch (const std::bad_alloc&) {
    return true;
  }
  if (!status.ok()) return AllocationFailure::happened();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  bool sent_abort = !abort;
  while (seen->finishes == 0 && alive.use_count() > 1 && std::chrono::steady_clock::now() < deadline) {
    if (!sent_abort && seen->count > 0) {
      try {
        engine.abort(rid);
        sent_abort = true;
      } catch (const std::bad_alloc&) {
      }
    }
    std::this_thread::yield();
  }
  EXPECT_LT(std::chrono::steady_clock::now(), deadline) << "nobody answered";
  EXPECT_LE(seen->finishes, 1);
  return AllocationFailure::happened();
}

void fail_everywhere(bool overlap, bool abort) {
  ServedModel served = serve(overlap);
  const auto expected = std::make_shared<Seen>();
  while (run(*served.engine, 12, false, expected)) {
    expected->count = 0;
    expected->finishes = 0;
  }
  int runs = 0;
  for (bool failed = true; failed && runs < kMaxRuns && !::testing::Test::HasFailure(); ++runs) {
    const auto seen = std::make_shared<Seen>();
    failed = run(*served.engine, abort ? 400 : 12, abort, seen);
    const Status audit = served.engine->audit();
    EXPECT_TRUE(audit.ok()) << audit.message();
    if (failed || abort) continue;
    EXPECT_FALSE(seen->aborted);
    EXPECT_EQ(seen->count, 12);
    EXPECT_TRUE(std::equal(seen->ids.begin(), seen->ids.begin() + 12, expected->ids.begin()));
  }
  EXPECT_LT(runs, kMaxRuns);
  served.engine->drain(5);
}

TEST(EngineAllocationFailure, OfARequest) { fail_everywhere(/*overlap=*/true, /*abort=*/false); }
TEST(EngineAllocationFailure, OfARequestWithoutOverlap) { fail_everywhere(false, false); }
TEST(EngineAllocationFailure, OfAnAbort) { fail_everywhere(true, true); }

TEST(EngineAllocationFailure, OfAShutdownWithARunningRequest) {
  bool failed = true;
  for (int runs = 0; failed && runs < 100; ++runs) {
    ServedModel served = serve();
    const auto seen = std::make_shared<Seen>();
    OutputSink sink = [seen](OutputDelta delta) { seen->finishes += delta.finish.has_value(); };
    ASSERT_TRUE(served.engine->submit(request_of(400), std::move(sink)).ok());
    AllocationFailure failure(FailOn::every_thread);
    served.engine.reset();
    failed = AllocationFailure::happened();
    EXPECT_LE(seen->finishes, 1);
  }
}

}  // namespace
}  // namespace warpweave
