// Requests for states: embeddings and labels against what transformers computes from the same tiny weights
// (tests/golden/pooling, made by tools/make_pooling_goldens.py), in every cut of steps; hidden states beside tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "engine/engine_impl.h"
#include "engine/testing/held_engine.h"

namespace warpweave {
namespace {

constexpr float kTolerance = 1e-4f;  // bf16 weights are widened; sums are in f32 on both sides

struct Case {
  std::vector<int32_t> ids;
  std::vector<std::vector<float>> states;
  std::vector<float> pooled;
  int second_text_at;
};

std::string folder_of(const std::string& name) { return "tests/golden/pooling/" + name; }

std::vector<Case> cases_of(const std::string& name) {
  std::vector<Case> out;
  const auto golden = nlohmann::json::parse(std::ifstream(folder_of(name) + "/golden.json"));
  for (const auto& item : golden.at("cases")) {
    out.push_back({item["input_ids"].get<std::vector<int32_t>>(), item["states"].get<std::vector<std::vector<float>>>(),
                   item["pooled"].get<std::vector<float>>(), item.value("second_text_at", -1)});
  }
  return out;
}

Result<ServedModel> serve(const std::string& name, ServerArgs args = {}) {
  args.dtype = "float32";
  args.device = "cpu";
  args.skip_tokenizer_init = true;
  if (!args.max_total_tokens) args.max_total_tokens = 512;
  args.model_path = folder_of(name);
  return create_engine({.args = args, .model_path = folder_of(name), .on_weights_progress = {}});
}

// The last delta of each request.
class Answers {
 public:
  OutputSink sink(const std::string& rid) {
    return [this, rid](OutputDelta delta) {
      std::lock_guard lock(mutex_);
      auto& ids = ids_[rid];
      ids.insert(ids.end(), delta.token_ids.begin(), delta.token_ids.end());
      if (!delta.finish) return;
      last_[rid] = std::move(delta);
      changed_.notify_all();
    };
  }
  OutputDelta wait(const std::string& rid) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return last_.contains(rid); }));
    return last_[rid];
  }
  std::vector<int32_t> ids(const std::string& rid) {
    std::lock_guard lock(mutex_);
    return ids_[rid];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, OutputDelta> last_;
  std::map<std::string, std::vector<int32_t>> ids_;
};

GenerateRequest pooled(std::string rid, std::vector<int32_t> ids) {
  GenerateRequest request;
  request.rid = std::move(rid);
  request.input_ids = std::move(ids);
  request.states = StateWish::pooled;
  return request;
}

void expect_near(std::span<const float> got, std::span<const float> expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], kTolerance) << what << ", value " << i;
}

// All cases at once, several times: later rounds find the prompts in the cache.
void expect_goldens(const std::string& name, const ServerArgs& args) {
  auto served = serve(name, args);
  ASSERT_TRUE(served.ok()) << served.status().message();
  Engine& engine = *served->engine;
  EXPECT_TRUE(engine.info().pools);
  const std::vector<Case> cases = cases_of(name);
  for (int round = 0; round < 3; ++round) {
    Answers answers;
    for (size_t i = 0; i < cases.size(); ++i) {
      GenerateRequest request = pooled(std::to_string(i), cases[i].ids);
      request.second_text_at = cases[i].second_text_at;
      ASSERT_TRUE(engine.submit(request, answers.sink(request.rid)).ok());
    }
    for (size_t i = 0; i < cases.size(); ++i) {
      const OutputDelta delta = answers.wait(std::to_string(i));
      EXPECT_TRUE(delta.finish->error.ok()) << delta.finish->error.message();
      EXPECT_EQ(delta.completion_tokens, 0);
      EXPECT_EQ(static_cast<int>(delta.pooled.size()), engine.info().pooled_size);
      expect_near(delta.pooled, cases[i].pooled,
                  name + ", case " + std::to_string(i) + ", round " + std::to_string(round));
    }
  }
  EXPECT_TRUE(engine.audit().ok());
}

class PooledTest : public testing::TestWithParam<const char*> {};

TEST_P(PooledTest, EqualsTransformers) { expect_goldens(GetParam(), {}); }

TEST_P(PooledTest, EqualsTransformersInSmallChunksAndWithoutOverlap) {
  ServerArgs args;
  args.chunked_prefill_size = 4;
  args.page_size = 3;
  expect_goldens(GetParam(), args);
  args.disable_overlap_schedule = true;
  args.disable_radix_cache = true;
  expect_goldens(GetParam(), args);
}

INSTANTIATE_TEST_SUITE_P(Models, PooledTest,
                         testing::Values("qwen3-last", "llama-mean", "llama-cls", "qwen3-labels", "llama-score"));

struct EncoderCase {
  const char* model;
  const char* backend;
};

class EncoderTest : public testing::TestWithParam<EncoderCase> {};

// Alone, beside one another, and as the two texts of a pair.
TEST_P(EncoderTest, EqualsTransformersWithEveryBackend) {
  ServerArgs args;
  args.attention_backend = GetParam().backend;
  const auto served = serve(GetParam().model, args);
  const std::string why = served.ok() ? "" : served.status().message();
  // A build for a sanitizer has no OpenCL.
  const bool no_opencl = why.find("cannot run here") != std::string::npos || why.find("not built into this") != std::string::npos;
  if (no_opencl && args.attention_backend == "triton") GTEST_SKIP() << why;
  expect_goldens(GetParam().model, args);
  args.page_size = 3;
  args.max_prefill_tokens = 20;
  args.max_running_requests = 2;
  args.disable_overlap_schedule = true;
  expect_goldens(GetParam().model, args);
}

std::vector<EncoderCase> encoder_cases() {
  std::vector<EncoderCase> out;
  for (const char* model : {"bert-mean", "bert-score", "roberta-labels", "modernbert-cls", "modernbert-score",
                            "modernbert-labels", "xlm-roberta-mean", "xlm-roberta-score"}) {
    for (const char* backend : {"intel_amx", "torch_native", "flex_attention", "triton"})
      out.push_back({model, backend});
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Models, EncoderTest, testing::ValuesIn(encoder_cases()), [](const auto& info) {
  std::string name = std::string(info.param.model) + "_" + info.param.backend;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(EncoderServing, FlagsThatAskForMoreAreNamed) {
  ServerArgs chunks, mixed, drafts, adapters, pooling;
  chunks.chunked_prefill_size = 16;
  mixed.enable_mixed_chunk = true;
  drafts.speculative_algorithm = "NGRAM";
  adapters.enable_lora = true;
  pooling.pooling = "mean";
  EXPECT_EQ(serve("bert-mean", chunks).status().field(), "--chunked-prefill-size");
  EXPECT_EQ(serve("bert-mean", mixed).status().field(), "--enable-mixed-chunk");
  EXPECT_EQ(serve("bert-mean", drafts).status().field(), "--speculative-algorithm");
  EXPECT_EQ(serve("bert-mean", adapters).status().field(), "--enable-lora");
  EXPECT_EQ(serve("modernbert-score", pooling).status().field(), "--pooling");
  chunks.chunked_prefill_size = -1;
  EXPECT_TRUE(serve("bert-mean", chunks).ok());
}

TEST(EncoderServing, GeneratesNothingAndHoldsNoMoreThanItsPositions) {
  auto served = serve("roberta-labels");
  ASSERT_TRUE(served.ok()) << served.status().message();
  EXPECT_EQ(served->engine->info().context_len, 46);  // 48 positions, counted from behind the padding token's
  GenerateRequest request = pooled("a", {3, 4});
  request.states = StateWish::none;
  const Status status = served->engine->submit(request, [](OutputDelta) {});
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("/classify"), std::string::npos);
  const std::vector<int32_t> long_prompt(47, 5);
  EXPECT_EQ(served->engine->submit(pooled("b", long_prompt), [](OutputDelta) {}).field(), "input_ids");
}

TEST(PooledServing, SaysWhatTheModelIs) {
  auto last = serve("qwen3-last"), mean = serve("llama-mean"), labels = serve("qwen3-labels");
  ASSERT_TRUE(last.ok() && mean.ok() && labels.ok());
  EXPECT_EQ(last->engine->info().pooling, "last, normalized");
  EXPECT_EQ(mean->engine->info().pooling, "mean");
  EXPECT_EQ(last->engine->info().architecture, "Qwen3Model");
  EXPECT_FALSE(last->engine->info().generates);
  EXPECT_EQ(labels->engine->info().labels, (std::vector<std::string>{"class 0", "class 1", "class 2"}));
}

TEST(PooledServing, TheFlagGoesBeforeTheFiles) {
  ServerArgs args;
  args.pooling = "last";
  auto served = serve("llama-mean", args);
  ASSERT_TRUE(served.ok()) << served.status().message();
  const Case golden = cases_of("llama-mean")[2];
  Answers answers;
  ASSERT_TRUE(served->engine->submit(pooled("a", golden.ids), answers.sink("a")).ok());
  expect_near(answers.wait("a").pooled, golden.states.back(), "the last token's state");
  EXPECT_EQ(serve("qwen3-labels", args).status().field(), "--pooling");
}

TEST(PooledServing, ModelsWithoutAVocabularyRefuseToGenerate) {
  auto served = serve("qwen3-last");
  ASSERT_TRUE(served.ok());
  GenerateRequest request = pooled("a", {3, 4});
  request.states = StateWish::none;
  const Status status = served->engine->submit(request, [](OutputDelta) {});
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("/v1/embeddings"), std::string::npos);
}

TEST(PooledServing, ModelsThatGenerateNeedTheFlag) {
  ServerArgs args;
  args.model_path = "models/tale-llama";
  args.device = "cpu";
  args.max_total_tokens = 1024;
  for (const bool flag : {false, true}) {
    args.is_embedding = flag;
    auto served = create_engine({.args = args, .model_path = args.model_path, .on_weights_progress = {}});
    ASSERT_TRUE(served.ok()) << served.status().message();
    Answers answers;
    const Status status = served->engine->submit(pooled("a", {3, 4, 5}), answers.sink("a"));
    EXPECT_EQ(status.ok(), flag) << status.message();
    if (flag) {
      EXPECT_EQ(static_cast<int>(answers.wait("a").pooled.size()), served->engine->info().hidden_size);
    } else {
      EXPECT_NE(status.message().find("--is-embedding"), std::string::npos);
    }
  }
}

// Beside generation, in chunks, over a cached prompt and through retractions: the same states.
TEST(PooledServing, HiddenStatesOfEveryTokenDoNotDependOnSteps) {
  const auto states_of = [](ServerArgs args, int copies) {
    args.dtype = "float32";
    args.device = "cpu";
    args.model_path = "models/tale-llama";
    auto served = create_engine({.args = args, .model_path = args.model_path, .on_weights_progress = {}});
    EXPECT_TRUE(served.ok()) << served.status().message();
    Answers answers;
    auto held = std::make_unique<HeldEngine>(*served->engine);
    for (int i = 0; i < copies; ++i) {
      GenerateRequest request;
      request.rid = std::to_string(i);
      for (int k = 0; k < 40; ++k) request.input_ids.push_back(3 + k * 7 % 200);
      request.input_ids[0] += i;
      request.sampling.max_new_tokens = 12;
      request.sampling.temperature = 0;
      request.sampling.ignore_eos = true;
      request.states = StateWish::each;
      EXPECT_TRUE(served->engine->submit(request, answers.sink(request.rid)).ok());
    }
    held.reset();
    std::vector<std::vector<float>> out;
    for (int i = 0; i < copies; ++i) {
      const OutputDelta delta = answers.wait(std::to_string(i));
      EXPECT_EQ(delta.states.size(), (40u + 11u) * served->engine->info().hidden_size) << "request " << i;
      out.push_back(delta.states);
    }
    return std::pair(out, served->engine->stats().retracted_reqs_total);
  };
  ServerArgs plain;
  plain.disable_overlap_schedule = true;
  plain.disable_radix_cache = true;
  plain.max_total_tokens = 1024;
  const auto expected = states_of(plain, 4).first;
  ServerArgs tight;
  tight.chunked_prefill_size = 9;
  tight.enable_mixed_chunk = true;
  tight.max_total_tokens = 130;
  tight.schedule_conservativeness = 0.1;
  const auto [got, retractions] = states_of(tight, 4);
  EXPECT_GT(retractions, 0u);
  for (size_t i = 0; i < expected.size(); ++i) expect_near(got[i], expected[i], "request " + std::to_string(i));
}

}  // namespace
}  // namespace warpweave
