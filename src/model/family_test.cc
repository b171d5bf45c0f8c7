// Every family against what transformers computes from the same tiny random weights
// (tests/golden/families, made by tools/make_family_goldens.py).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "attention/registry.h"
#include "attention/select.h"
#include "device/opencl/platform_name.h"
#include "model/families/family.h"
#include "model/testing/max_difference.h"
#include "model/testing/paged_run.h"
#include "model/unread_tensors.h"
#include "model/unread_weights.h"

namespace warpweave {
namespace {

constexpr float kTolerance = 2e-4f;  // the goldens are rounded to 1e-5; logits reach about 10

struct Golden {
  std::vector<int32_t> ids;         // the prompt, then the greedy continuation
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy;
  std::vector<float> logits;        // [ids, vocab]
};

std::string golden_folder(const std::string& name) { return "tests/golden/families/" + name; }

// A GGUF file stands alone; a Hugging Face model is its folder.
std::string model_path(const std::string& name) {
  return golden_folder(name) + (name.starts_with("gguf-") ? "/model.gguf" : "");
}

Golden read_golden(const std::string& name) {
  const auto json = nlohmann::json::parse(std::ifstream(golden_folder(name) + "/golden.json"));
  Golden out;
  out.prompt = json.at("input_ids").get<std::vector<int32_t>>();
  out.greedy = json.at("greedy_ids").get<std::vector<int32_t>>();
  out.ids = out.prompt;
  out.ids.insert(out.ids.end(), out.greedy.begin(), out.greedy.end());
  for (const auto& row : json.at("logits")) {
    for (const auto& value : row) out.logits.push_back(value.get<float>());
  }
  return out;
}

std::unique_ptr<PagedRun> open_or_fail(const std::string& path, const PagedRunOptions& options = {}) {
  auto run = PagedRun::open(path, options);
  EXPECT_TRUE(run.ok()) << run.status().message();
  return run.ok() ? std::move(run).value() : nullptr;
}

class FamilyTest : public testing::TestWithParam<const char*> {};

TEST_P(FamilyTest, WholePrefillGivesTheSameLogits) {
  const Golden golden = read_golden(GetParam());
  auto run = open_or_fail(model_path(GetParam()));
  ASSERT_NE(run, nullptr);
  auto logits = run->feed(golden.ids);
  ASSERT_TRUE(logits.ok()) << logits.status().message();
  EXPECT_LE(max_difference(*logits, golden.logits), kTolerance);
}

TEST_P(FamilyTest, ChunksAndDecodeStepsGiveTheSameLogits) {
  const Golden golden = read_golden(GetParam());
  auto run = open_or_fail(model_path(GetParam()));
  ASSERT_NE(run, nullptr);
  const std::span<const int32_t> ids(golden.ids);
  std::vector<float> all;
  size_t done = 0;
  for (size_t chunk : {size_t{7}, size_t{1}, size_t{13}, size_t{2}}) {
    auto logits = run->feed(ids.subspan(done, chunk));
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    all.insert(all.end(), logits->begin(), logits->end());
    done += chunk;
  }
  for (; done < ids.size(); ++done) {
    auto logits = run->feed(ids.subspan(done, 1));
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    all.insert(all.end(), logits->begin(), logits->end());
  }
  EXPECT_LE(max_difference(all, golden.logits), kTolerance);
}

TEST_P(FamilyTest, GreedyContinuationIsTheSame) {
  const Golden golden = read_golden(GetParam());
  auto run = open_or_fail(model_path(GetParam()), {.page_size = 1});
  ASSERT_NE(run, nullptr);
  auto ids = run->greedy(golden.prompt, static_cast<int>(golden.greedy.size()));
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  EXPECT_EQ(*ids, golden.greedy);
}

// What a family leaves unread, it would compute wrong numbers without, or a checkpoint of it would be warned of at every
// start.
TEST_P(FamilyTest, NoTensorIsLeftUnread) {
  auto run = open_or_fail(model_path(GetParam()));
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(unread_weights_lines(run->bundle().weights->unread(), run->config()), std::vector<std::string>());
  ModelBundleOptions options;
  options.skip_tokenizer = true;
  const auto before_reading = open_model_bundle(model_path(GetParam()), options);
  ASSERT_TRUE(before_reading.ok()) << before_reading.status().message();
  const auto unread = unread_tensors(before_reading->config, before_reading->weights);
  ASSERT_TRUE(unread.ok()) << unread.status().message();
  EXPECT_EQ(*unread, run->bundle().weights->unread());
}

// Logits of some rows only take the shortcut of the last layer: the same numbers, bit for bit.
TEST_P(FamilyTest, LogitsOfTheLastRowsAreThoseOfAllRows) {
  const Golden golden = read_golden(GetParam());
  auto run = open_or_fail(model_path(GetParam()));
  ASSERT_NE(run, nullptr);
  auto all = run->feed(golden.ids);
  ASSERT_TRUE(all.ok());
  for (int rows : {1, 3}) {
    run->restart();
    auto some = run->feed(golden.ids, rows);
    ASSERT_TRUE(some.ok());
    EXPECT_EQ(max_difference(*some, std::span(*all).last(some->size())), 0) << rows << " rows";
  }
}

// A draft model shares the head; its logits are the target's own where the rows are.
TEST_P(FamilyTest, TheHeadAloneGivesTheSameLogits) {
  const Golden golden = read_golden(GetParam());
  auto run = open_or_fail(model_path(GetParam()));
  ASSERT_NE(run, nullptr);
  run->model().keep_hidden(true);
  const auto all = run->feed(golden.prompt);
  ASSERT_TRUE(all.ok()) << all.status().message();
  std::vector<float> from_head(all->size());
  run->model().head_logits(run->model().hidden(), static_cast<int64_t>(golden.prompt.size()),
                           {.values = from_head.data()}, run->team());
  EXPECT_LE(max_difference(from_head, *all), kTolerance);
}

// Selection refuses these pairs; here backends are created directly.
bool lacks_a_feature(const Caps& caps, const ModelConfig& config) {
  return (config.has_windows() && !caps.sliding_window) || (config.attention_softcap > 0 && !caps.softcap) ||
         (config.model_type == "gpt_oss" && !caps.sinks) || (config.latent && !caps.kinds.has(AttentionKind::mla));
}

TEST_P(FamilyTest, EveryBackendGivesTheSameLogits) {
  const Golden golden = read_golden(GetParam());
  const size_t prompt = golden.prompt.size();
  const auto reference = open_or_fail(model_path(GetParam()));
  ASSERT_NE(reference, nullptr);
  for (const BackendRegistration& backend : built_backends()) {
    if (lacks_a_feature(*backend.caps, reference->config())) continue;
    if (!backend.caps->archs.has(cpu_hardware_facts().arch)) continue;
    if (backend.probe && !backend.probe(Probe::thorough).ok()) continue;  // no driver here
    const std::string name(backend.caps->name);
    auto run = open_or_fail(model_path(GetParam()), {.backend = name, .page_size = 16});
    ASSERT_NE(run, nullptr);
    auto all = run->feed(golden.prompt);
    ASSERT_TRUE(all.ok()) << all.status().message();
    for (int32_t id : golden.greedy) {
      auto one = run->feed(std::span(&id, 1));
      ASSERT_TRUE(one.ok()) << one.status().message();
      all->insert(all->end(), one->begin(), one->end());
    }
    ASSERT_EQ(all->size(), (prompt + golden.greedy.size()) * run->vocab_size());
    EXPECT_LE(max_difference(*all, golden.logits), kTolerance) << name;
  }
}

// Linear attention by the portable tile kernels: prompts in chunks, then step by step.
TEST(FamilyPortableTiles, HybridsMatchTransformers) {
  if (opencl::platform_name().empty()) GTEST_SKIP() << "no OpenCL device here";
  for (const char* name : {"qwen3-next", "qwen3_5", "kimi-linear-moe", "jet-nemotron"}) {
    SCOPED_TRACE(name);
    const Golden golden = read_golden(name);
    auto run = open_or_fail(model_path(name), {.linear_backend = "triton", .page_size = 16});
    ASSERT_NE(run, nullptr);
    auto all = run->feed(golden.prompt);
    ASSERT_TRUE(all.ok()) << all.status().message();
    for (int32_t id : golden.greedy) {
      auto one = run->feed(std::span(&id, 1));
      ASSERT_TRUE(one.ok()) << one.status().message();
      all->insert(all->end(), one->begin(), one->end());
    }
    EXPECT_LE(max_difference(*all, golden.logits), kTolerance);
  }
}

TEST_P(FamilyTest, Bfloat16StaysClose) {
  const Golden golden = read_golden(GetParam());
  auto run = open_or_fail(model_path(GetParam()), {.dtype = DType::bf16, .kv_format = KvFormat::bf16});
  ASSERT_NE(run, nullptr);
  auto logits = run->feed(golden.ids);
  ASSERT_TRUE(logits.ok()) << logits.status().message();
  double error = 0, norm = 0;
  for (size_t i = 0; i < golden.logits.size(); ++i) {
    error += std::pow((*logits)[i] - golden.logits[i], 2);
    norm += std::pow(golden.logits[i], 2);
  }
  // A wrong weight or bias gives more than 0.3. Rounding may send a token to another expert.
  const bool experts = std::string(GetParam()).find("moe") != std::string::npos;
  EXPECT_LT(std::sqrt(error / norm), experts ? 0.15 : 0.08);
}

INSTANTIATE_TEST_SUITE_P(
    Families, FamilyTest,
    testing::Values("llama", "llama-bias", "mistral", "qwen2", "qwen3", "qwen3-moe", "qwen3-next", "gemma2", "gemma3",
                    "gpt-oss", "gguf-qwen2", "gguf-qwen3", "gguf-qwen3moe", "gguf-gemma2", "gguf-gemma3", "mixtral-moe",
                    "qwen2-moe", "glm4-moe", "olmoe-moe", "phimoe-moe", "phimoe-moe-long", "gguf-mixtral-moe",
                    "deepseek-v2-moe", "deepseek-v2-groups-moe", "deepseek-v3-moe", "deepseek-v3-halves-moe",
                    "gguf-qwen2-moe", "gguf-olmoe-moe", "gguf-glm4-moe", "gguf-phimoe-moe", "phi3", "phi3-long",
                    "olmo2", "olmo3", "granite", "cohere2", "gemma", "glm4", "smollm3", "stablelm", "stablelm-parallel",
                    "starcoder2", "falcon3", "exaone4", "ernie4_5", "hunyuan", "seed_oss", "dynamic", "gguf-gemma",
                    "gguf-phi3", "gguf-olmo2", "gguf-olmo3", "gguf-granite", "gguf-cohere2", "gguf-glm4",
                    "gguf-smollm3", "gguf-stablelm", "gguf-starcoder2", "gguf-exaone4", "gguf-ernie4_5", "gguf-hunyuan",
                    "gguf-seed_oss", "qwen3_5", "qwen3_5-moe", "qwen3_5-bias", "qwen3_5-moe-wrapped", "lfm2",
                    "lfm2-bias", "lfm2-moe", "gguf-lfm2", "gguf-lfm2-moe", "kimi-linear-moe", "jet-nemotron", "gguf-deepseek-v2-moe",
                    "gguf-deepseek-v2-joined-moe", "gguf-deepseek-v3-moe", "gguf-deepseek-blocks-moe",
                    "gguf-kimi-linear-moe", "gguf-qwen3-next-moe", "gguf-qwen3_5", "gguf-qwen3_5-moe"),
    [](const auto& info) {
      std::string name = info.param;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// Layer 1 of 3 is dense; the last layer's feed-forward runs for the rows with wanted logits alone.
TEST(FamilyMoe, CountsWhichExpertsWereChosen) {
  auto run = open_or_fail(model_path("qwen3-moe"));
  ASSERT_NE(run, nullptr);
  ASSERT_NE(run->model().expert_load(), nullptr);
  EXPECT_TRUE(run->model().expert_load()->summary().empty());
  const int32_t ids[] = {5, 6, 7, 8, 9, 10, 11, 12};
  ASSERT_TRUE(run->feed(ids, 1).ok());
  const std::vector<ExpertLayerLoad> load = run->model().expert_load()->summary();
  ASSERT_EQ(load.size(), 2u);
  EXPECT_EQ(load[0].layer, 0);
  EXPECT_EQ(load[0].experts, 6);
  EXPECT_EQ(load[0].choices, 8 * 2u);
  EXPECT_GE(load[0].busiest, 3u);
  EXPECT_LE(load[0].busiest, 8u);
  EXPECT_EQ(load[1].layer, 2);
  EXPECT_EQ(load[1].choices, 2u);
  EXPECT_EQ(load[1].busiest, 1u);
  EXPECT_EQ(load[1].never_chosen, 4);

  auto dense = open_or_fail(model_path("llama"));
  ASSERT_NE(dense, nullptr);
  EXPECT_EQ(dense->model().expert_load(), nullptr);
}

TEST(FamilyRegistry, UnknownArchitectureNamesTheSupportedOnes) {
  const auto family = find_family("MambaForCausalLM");
  ASSERT_FALSE(family.ok());
  EXPECT_EQ(family.status().code(), StatusCode::unsupported);
  EXPECT_NE(family.status().message().find("MambaForCausalLM"), std::string::npos);
  EXPECT_NE(family.status().message().find("LlamaForCausalLM"), std::string::npos);
}

TEST(FamilyDummy, EveryFamilyRunsOnRandomWeightsOfItsConfigAlone) {
  for (const char* name : {"llama", "llama-bias", "mistral", "qwen2", "qwen3", "qwen3-moe", "qwen3-next", "gemma2",
                           "gemma3", "gpt-oss", "mixtral-moe", "qwen2-moe", "glm4-moe", "olmoe-moe", "phimoe-moe",
                           "phi3", "olmo2", "olmo3", "granite", "cohere2", "gemma", "glm4", "smollm3", "stablelm",
                           "stablelm-parallel", "starcoder2", "exaone4", "ernie4_5", "hunyuan", "seed_oss", "dynamic",
                           "qwen3_5", "qwen3_5-moe", "lfm2", "lfm2-moe", "kimi-linear-moe", "jet-nemotron"}) {
    auto run = open_or_fail(golden_folder(name), {.load_format = "dummy"});
    ASSERT_NE(run, nullptr) << name;
    const int32_t ids[] = {5, 6, 7, 8};
    auto logits = run->feed(ids);
    ASSERT_TRUE(logits.ok()) << name << logits.status().message();
    double sum = 0;
    for (float x : *logits) {
      ASSERT_TRUE(std::isfinite(x)) << name;
      sum += x * x;
    }
    const double rms = std::sqrt(sum / logits->size());
    EXPECT_GT(rms, 0.05) << name;
    EXPECT_LT(rms, 30) << name;
  }
}

}  // namespace
}  // namespace warpweave
