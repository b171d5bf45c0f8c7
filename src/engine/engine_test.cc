// The engine on the shipped model: the goldens that another implementation computed, and the
// promises of the loop (stop strings, abort, caching, determinism over batching).
#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "base/resident_memory.h"
#include "engine/engine_impl.h"

namespace warpweave {
namespace {

constexpr const char* kModel = "models/tale-llama";

// Everything one request got.
struct Answer {
  std::vector<int32_t> ids;
  std::string text;
  std::vector<PositionLogprobs> output_logprobs, input_logprobs;
  OutputDelta last;
};

class Collector {
 public:
  OutputSink sink(const std::string& rid) {
    return [this, rid](OutputDelta delta) {
      std::lock_guard lock(mutex_);
      Answer& answer = answers_[rid];
      answer.ids.insert(answer.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
      answer.text += delta.text;
      for (auto& p : delta.output_logprobs) answer.output_logprobs.push_back(p);
      for (auto& p : delta.input_logprobs) answer.input_logprobs.push_back(p);
      if (delta.finish) ++finished_;
      answer.last = std::move(delta);
      changed_.notify_all();
    };
  }
  void wait(int finished) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::minutes(10), [&] { return finished_ >= finished; }));
  }
  Answer& operator[](const std::string& rid) {
    std::lock_guard lock(mutex_);
    return answers_[rid];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Answer> answers_;
  int finished_ = 0;
};

ServedModel serve(ServerArgs args = {}) {
  if (args.dtype == "auto") args.dtype = "float32";
  args.model_path = kModel;
  auto served = create_engine({.args = args, .model_path = kModel, .on_weights_progress = {}});
  EXPECT_TRUE(served.ok()) << served.status().message();
  return std::move(served).value();
}

nlohmann::json golden() { return nlohmann::json::parse(std::ifstream(std::string(kModel) + "/golden.json")); }

GenerateRequest greedy(std::string rid, std::vector<int32_t> ids, int new_tokens) {
  GenerateRequest request;
  request.rid = std::move(rid);
  request.input_ids = std::move(ids);
  request.sampling.temperature = 0;
  request.sampling.max_new_tokens = new_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.skip_special_tokens = false;
  return request;
}

void expect_goldens(const ServerArgs& args) {
  ServedModel served = serve(args);
  Collector answers;
  const auto prompts = golden()["prompts"];
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerateRequest request = greedy(std::to_string(i), prompts[i]["input_ids"], 32);
    request.return_logprob = true;
    request.top_logprobs_num = 10;
    ASSERT_TRUE(served.engine->submit(request, answers.sink(request.rid)).ok());
  }
  answers.wait(static_cast<int>(prompts.size()));
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Answer& got = answers[std::to_string(i)];
    EXPECT_EQ(got.ids, prompts[i]["greedy_ids"].get<std::vector<int32_t>>()) << i;
    EXPECT_EQ(got.text, prompts[i]["greedy_text"].get<std::string>()) << i;
    ASSERT_EQ(got.output_logprobs.size(), 32u);
    for (int k = 0; k < 10; ++k) {
      EXPECT_EQ(got.output_logprobs[0].top[k].token_id, prompts[i]["first_step_top10"][k][0].get<int32_t>());
      EXPECT_NEAR(got.output_logprobs[0].top[k].logprob, prompts[i]["first_step_top10"][k][1].get<float>(), 1e-3);
    }
  }
}

TEST(Engine, MatchesTheGoldens) { expect_goldens({}); }

TEST(Engine, MatchesTheGoldensInSmallChunksOddPagesAndWithTorchNative) {
  ServerArgs args;
  args.chunked_prefill_size = 7;
  args.page_size = 5;
  args.enable_mixed_chunk = true;
  expect_goldens(args);
  args.attention_backend = "torch_native";
  args.disable_overlap_schedule = true;
  args.mixed_chunk_rows = 5;
  expect_goldens(args);
}

TEST(Engine, StepTotalsCountEveryStepAndRowOnce) {
  ServerArgs args;
  args.chunked_prefill_size = 8;
  args.enable_mixed_chunk = true;
  args.disable_radix_cache = true;
  ServedModel served = serve(args);
  Collector answers;
  const auto prompts = golden()["prompts"];
  uint64_t tokens = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerateRequest request = greedy(std::to_string(i), prompts[i]["input_ids"], 9);
    tokens += request.input_ids.size() + 8;  // the last token is never fed back
    ASSERT_TRUE(served.engine->submit(request, answers.sink(request.rid)).ok());
  }
  answers.wait(static_cast<int>(prompts.size()));
  EngineStats stats;
  for (int i = 0; i < 1000; ++i) {  // written when the step's answers are out
    stats = served.engine->stats();
    if (stats.running_reqs == 0 && stats.generation_tokens_total == 9 * prompts.size()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const StepTotals kinds[] = {stats.decode_steps, stats.prefill_steps, stats.mixed_steps};
  uint64_t steps = 0, rows = 0;
  for (const StepTotals& kind : kinds) {
    steps += kind.steps;
    rows += kind.tokens;
    EXPECT_EQ(kind.device_ms > 0, kind.steps > 0);
    EXPECT_EQ(kind.host_ms > 0, kind.steps > 0);
    EXPECT_GE(kind.tokens, kind.requests);
  }
  EXPECT_EQ(steps, stats.steps_total);
  EXPECT_EQ(rows, tokens);
  EXPECT_EQ(stats.decode_steps.tokens, stats.decode_steps.requests);
  EXPECT_GT(stats.decode_steps.steps, 0u);
  const auto& sizes = stats.step_sizes.counts;
  EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), uint64_t{0}), steps);
  // Prefills here have 8 tokens at most, and each request beside them one.
  EXPECT_GT(sizes[0] + sizes[1], 0u);
  EXPECT_EQ(std::accumulate(sizes.begin() + 3, sizes.end(), uint64_t{0}), 0u);
}

TEST(Engine, InputLogprobsAreThoseOfTheModel) {
  ServedModel served = serve();
  Collector answers;
  const std::vector<int32_t> ids = golden()["prompts"][0]["input_ids"];
  GenerateRequest request = greedy("a", ids, 1);
  request.return_logprob = true;
  request.logprob_start_len = 0;
  request.token_ids_logprob = {342};
  ASSERT_TRUE(served.engine->submit(request, answers.sink("a")).ok());
  answers.wait(1);
  const Answer& got = answers["a"];
  ASSERT_EQ(got.input_logprobs.size(), ids.size());
  EXPECT_TRUE(std::isnan(got.input_logprobs[0].chosen.logprob));
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(got.input_logprobs[i].chosen.token_id, ids[i]);
  // The prompt cut by one predicts the last id with the same logprob.
  GenerateRequest cut = greedy("b", {ids.begin(), ids.end() - 1}, 1);
  cut.return_logprob = true;
  cut.token_ids_logprob = {ids.back()};
  ASSERT_TRUE(served.engine->submit(cut, answers.sink("b")).ok());
  answers.wait(2);
  EXPECT_NEAR(answers["b"].output_logprobs[0].token_ids[0].logprob, got.input_logprobs.back().chosen.logprob, 1e-4);
}

// A long prompt's logits are taken in blocks, and other requests' rows lie between.
TEST(Engine, LongPromptsLogprobsDoNotDependOnTheirBlocks) {
  std::vector<int32_t> ids;
  const nlohmann::json goldens = golden();
  for (const auto& prompt : goldens["prompts"]) {
    const std::vector<int32_t> part = prompt["input_ids"];
    ids.insert(ids.end(), part.begin(), part.end());
  }
  for (size_t i = 0; ids.size() < 600; ++i) ids.push_back(ids[i]);
  const auto answer = [&](int chunk) {
    ServerArgs args;
    args.chunked_prefill_size = chunk;
    ServedModel served = serve(args);
    Collector answers;
    for (const char* id : {"a", "b"}) {
      GenerateRequest request = greedy(id, ids, 4);
      request.return_logprob = true;
      request.logprob_start_len = 0;
      EXPECT_TRUE(served.engine->submit(request, answers.sink(id)).ok());
    }
    answers.wait(2);
    EXPECT_EQ(answers["a"].ids, answers["b"].ids);
    return answers["b"];
  };
  const Answer whole = answer(2048), parts = answer(100);
  ASSERT_EQ(whole.input_logprobs.size(), ids.size());
  ASSERT_EQ(parts.input_logprobs.size(), ids.size());
  EXPECT_EQ(whole.ids, parts.ids);
  for (size_t i = 1; i < ids.size(); ++i) {
    EXPECT_EQ(whole.input_logprobs[i].chosen.token_id, ids[i]);
    EXPECT_NEAR(whole.input_logprobs[i].chosen.logprob, parts.input_logprobs[i].chosen.logprob, 1e-4) << i;
  }
}

TEST(Engine, StopStringEndsTheTextBeforeIt) {
  ServedModel served = serve();
  Collector answers;
  GenerateRequest request = greedy("a", golden()["prompts"][0]["input_ids"], 32);
  request.sampling.stop = {"king's daughter"};
  ASSERT_TRUE(served.engine->submit(request, answers.sink("a")).ok());
  answers.wait(1);
  EXPECT_EQ(answers["a"].text, " had a daughter.\n\nThe next day when the ");
  EXPECT_EQ(answers["a"].last.finish->matched_string, "king's daughter");
  EXPECT_EQ(answers["a"].last.finish->type, FinishReason::Type::stop);
}

TEST(Engine, SecondRunHitsTheCacheAndSaysTheSame) {
  ServedModel served = serve();
  Collector answers;
  const std::vector<int32_t> ids = golden()["prompts"][1]["input_ids"];
  for (const char* rid : {"cold", "warm"}) {
    ASSERT_TRUE(served.engine->submit(greedy(rid, ids, 16), answers.sink(rid)).ok());
    answers.wait(rid == std::string("cold") ? 1 : 2);
  }
  EXPECT_EQ(answers["cold"].last.cached_tokens, 0);
  EXPECT_EQ(answers["warm"].last.cached_tokens, static_cast<int>(ids.size()) - 1);
  EXPECT_EQ(answers["cold"].ids, answers["warm"].ids);
  EXPECT_TRUE(served.engine->flush_cache());
  EXPECT_EQ(served.engine->stats().used_tokens, 0);
}

TEST(Engine, AbortFreesThePages) {
  ServedModel served = serve();
  Collector answers;
  ASSERT_TRUE(served.engine->submit(greedy("a", {5, 6, 7}, 2000), answers.sink("a")).ok());
  EXPECT_EQ(served.engine->submit(greedy("a", {5}, 1), answers.sink("x")).field(), "rid");
  served.engine->abort("a");
  answers.wait(1);
  EXPECT_EQ(answers["a"].last.finish->type, FinishReason::Type::abort);
  ASSERT_TRUE(served.engine->submit(greedy("b", {5, 6, 7}, 4), answers.sink("b")).ok());
  answers.wait(2);
  EXPECT_EQ(answers["b"].ids.size(), 4u);
  served.engine->drain(5);
  EXPECT_EQ(served.engine->submit(greedy("c", {5}, 1), answers.sink("c")).code(), StatusCode::unavailable);
}

// Both are often taken out of the inbox at once.
TEST(Engine, AnAbortSparesRequestsThatComeLater) {
  ServedModel served = serve();
  Collector answers;
  for (int i = 0; i < 200; ++i) {
    const std::string rid = std::to_string(i);
    served.engine->abort(i % 2 == 0 ? "" : rid);
    ASSERT_TRUE(served.engine->submit(greedy(rid, {5, 6, 7}, 1), answers.sink(rid)).ok());
    answers.wait(i + 1);
    ASSERT_NE(answers[rid].last.finish->type, FinishReason::Type::abort) << i;
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
size_t resident_bytes() { return static_cast<size_t>(resident_memory().bytes); }

// Blocks that are freed between others that stay keep their pages, until the engine has been idle for a moment.
TEST(Engine, GivesFreeMemoryBackWhenIdle) {
  constexpr size_t kBlocks = 4096, kBlockBytes = 16 << 10, kKeptOf = 64;
  ServedModel served = serve();
  std::vector<std::unique_ptr<char[]>> blocks;
  for (size_t i = 0; i < kBlocks; ++i) blocks.push_back(std::make_unique<char[]>(kBlockBytes));
  for (size_t i = 0; i < kBlocks; ++i) {
    if (i % kKeptOf != 0) blocks[i].reset();
  }
  const size_t held = resident_bytes(), half = kBlocks * kBlockBytes / 2;
  ASSERT_GT(held, half);
  Collector answers;
  ASSERT_TRUE(served.engine->submit(greedy("a", {5, 6, 7}, 4), answers.sink("a")).ok());
  answers.wait(1);
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (resident_bytes() > held - half && std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_LT(resident_bytes(), held - half);
}
#endif

// Who asked for an abort hears "cancelled"; whom the shutdown ends may try another server.
TEST(Engine, ADrainThatRunsOutOfTimeSaysUnavailable) {
  ServedModel served = serve();
  Collector answers;
  GenerateRequest request = greedy("a", {5, 6, 7}, 100000);
  request.sampling.max_new_tokens = 1500;
  request.sampling.ignore_eos = true;
  ASSERT_TRUE(served.engine->submit(std::move(request), answers.sink("a")).ok());
  served.engine->drain(0);
  answers.wait(1);
  EXPECT_EQ(answers["a"].last.finish->type, FinishReason::Type::abort);
  EXPECT_EQ(answers["a"].last.finish->error.code(), StatusCode::unavailable);
}

TEST(Engine, RefusesWhatCannotRun) {
  ServedModel served = serve();
  Collector answers;
  EXPECT_EQ(served.engine->submit(greedy("a", {}, 1), answers.sink("a")).field(), "input_ids");
  EXPECT_EQ(served.engine->submit(greedy("a", {4096}, 1), answers.sink("a")).field(), "input_ids");
  EXPECT_EQ(served.engine->submit(greedy("a", {-1}, 1), answers.sink("a")).field(), "input_ids");
  EXPECT_EQ(served.engine->submit(greedy("a", std::vector<int32_t>(2048, 7), 1), answers.sink("a")).field(),
            "input_ids");
}

TEST(Engine, SeededSamplingDoesNotDependOnTheBatch) {
  ServedModel served = serve();
  Collector answers;
  const auto seeded = [&](const std::string& rid) {
    GenerateRequest request = greedy(rid, golden()["prompts"][2]["input_ids"], 24);
    request.sampling.temperature = 1.0f;
    request.sampling.top_p = 0.95f;
    request.sampling.seed = 42;
    return request;
  };
  ASSERT_TRUE(served.engine->submit(seeded("alone"), answers.sink("alone")).ok());
  answers.wait(1);
  for (int i = 0; i < 8; ++i) {
    const std::string rid = "r" + std::to_string(i);
    ASSERT_TRUE(served.engine->submit(i % 2 ? seeded(rid) : greedy(rid, {i + 10, 3, 4}, 20), answers.sink(rid)).ok());
  }
  answers.wait(9);
  for (int i = 1; i < 8; i += 2) EXPECT_EQ(answers["r" + std::to_string(i)].ids, answers["alone"].ids);
}

// Logits are made block by block: each request reads its own rows, and a proposal's are in one block.
TEST(Engine, MoreRequestsThanABlockOfLogitsSampleAsAlone) {
  constexpr int kRequests = 300;
  const auto request_of = [](int i, const std::string& rid) {
    GenerateRequest request = greedy(rid, {20 + i, 30, 40, 20 + i, 30, 40, 20 + i, 30}, 8);
    request.sampling.temperature = i % 3 == 0 ? 0.0f : 1.0f;
    request.sampling.seed = i;
    return request;
  };
  for (const char* algorithm : {"", "NGRAM"}) {
    ServerArgs args;
    args.max_running_requests = kRequests;
    args.speculative_algorithm = algorithm;
    ServedModel served = serve(args);
    Collector together, alone;
    for (int i = 0; i < kRequests; ++i) {
      const std::string rid = std::to_string(i);
      ASSERT_TRUE(served.engine->submit(request_of(i, rid), together.sink(rid)).ok());
    }
    together.wait(kRequests);
    int done = 0;
    for (int i = 0; i < kRequests; i += 23) {
      const std::string rid = "alone" + std::to_string(i);
      ASSERT_TRUE(served.engine->submit(request_of(i, rid), alone.sink(rid)).ok());
      alone.wait(++done);
      EXPECT_EQ(together[std::to_string(i)].ids, alone[rid].ids) << i << algorithm;
    }
  }
}

TEST(Engine, TinyPoolRetractsAndStillAnswersEverybody) {
  ServerArgs args;
  args.max_total_tokens = 96;
  args.page_size = 4;
  ServedModel served = serve(args);
  ServedModel roomy = serve();
  Collector tight, loose;
  for (int i = 0; i < 6; ++i) {
    const std::string rid = std::to_string(i);
    const GenerateRequest request = greedy(rid, {20 + i, 30, 40 + i}, 40);
    ASSERT_TRUE(served.engine->submit(request, tight.sink(rid)).ok());
    ASSERT_TRUE(roomy.engine->submit(request, loose.sink(rid)).ok());
  }
  tight.wait(6);
  loose.wait(6);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(tight[std::to_string(i)].ids, loose[std::to_string(i)].ids);
}

}  // namespace
}  // namespace warpweave
