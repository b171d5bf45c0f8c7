// Trained models and GGUF files against what transformers computes from the same weights.
// models/ is part of the project; more models are tried where WARPWEAVE_SHARED (or ../shared) has them.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "device/opencl/platform_name.h"
#include "model/testing/paged_run.h"
#include "model/testing/shared_model.h"

namespace warpweave {
namespace {

using nlohmann::json;

json read_json(const std::string& path) { return json::parse(std::ifstream(path)); }

std::unique_ptr<PagedRun> open_or_fail(const std::string& path, const PagedRunOptions& options = {}) {
  auto run = PagedRun::open(path, options);
  EXPECT_TRUE(run.ok()) << run.status().message();
  return run.ok() ? std::move(run).value() : nullptr;
}

void expect_first_step(const json& prompt, std::span<const float> logits) {
  std::vector<float> logprobs(logits.size());
  log_softmax(logits.data(), static_cast<int64_t>(logits.size()), logprobs.data());
  for (const auto& entry : prompt.at("first_step_top10")) {
    EXPECT_NEAR(logprobs[entry[0].get<int>()], entry[1].get<float>(), 1e-4) << entry.dump();
  }
}

// Greedy ids of every prompt, the first step's log-probabilities, and the text's log-likelihood.
void expect_golden(const std::string& folder, const std::string& backend, const std::string& linear_backend = "cpu") {
  const json golden = read_json(folder + "/golden.json");
  for (const json& prompt : golden.at("prompts")) {
    auto run = open_or_fail(folder, {.backend = backend,
                                     .linear_backend = linear_backend,
                                     .page_size = 16,
                                     .max_tokens = 512});
    ASSERT_NE(run, nullptr);
    const auto ids = prompt.at("input_ids").get<std::vector<int32_t>>();
    auto first = run->feed(ids, 1);
    ASSERT_TRUE(first.ok()) << first.status().message();
    expect_first_step(prompt, *first);
    run->restart();
    const auto expected = prompt.at("greedy_ids").get<std::vector<int32_t>>();
    auto greedy = run->greedy(ids, static_cast<int>(expected.size()));
    ASSERT_TRUE(greedy.ok());
    EXPECT_EQ(*greedy, expected);
  }
}

TEST(TaleGolden, TaleLlamaWithTheReferenceBackend) { expect_golden("models/tale-llama", "reference"); }
TEST(TaleGolden, TaleLlamaWithTorchNative) { expect_golden("models/tale-llama", "torch_native"); }
double relative_error(std::span<const float> got, std::span<const float> wanted) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    error += std::pow(got[i] - wanted[i], 2);
    norm += std::pow(wanted[i], 2);
  }
  return std::sqrt(error / norm);
}

// PyTorch's rounding of the same weights moves these logits by 0.0344 (a scale a row) and 0.0384 (blocks).
TEST(TaleGolden, WeightsRoundedTo8BitsStayClose) {
  const auto ids =
      read_json("models/tale-llama/golden.json").at("prompts")[0].at("input_ids").get<std::vector<int32_t>>();
  const auto exact = open_or_fail("models/tale-llama")->feed(ids);
  ASSERT_TRUE(exact.ok());
  for (const auto& [config, error] : {std::pair{Fp8Config{}, 0.0344}, {Fp8Config{128, 128}, 0.0384}}) {
    const auto rounded = open_or_fail("models/tale-llama", {.fp8 = config})->feed(ids);
    ASSERT_TRUE(rounded.ok());
    EXPECT_NEAR(relative_error(*rounded, *exact), error, 0.001) << config.block_rows;
  }
}

TEST(TaleGolden, TaleDraft) { expect_golden("models/tale-draft", "torch_native"); }

TEST(TaleGolden, TaleSwaSlidingWindow) {
  if (!std::filesystem::exists(shared_model("tale-swa"))) GTEST_SKIP() << "no ../shared/models/tale-swa";
  expect_golden(shared_model("tale-swa"), "torch_native");
}

TEST(TaleGolden, TaleMlaLatentAttention) {
  if (!std::filesystem::exists(shared_model("tale-mla"))) GTEST_SKIP() << "no ../shared/models/tale-mla";
  for (const char* backend : {"reference", "torch_native", "intel_amx", "flex_attention", "triton"}) {
    SCOPED_TRACE(backend);
    if (std::string(backend) == "triton" && opencl::platform_name().empty()) continue;
    expect_golden(shared_model("tale-mla"), backend);
  }
}

// Packed tokens of its latent rows: backends read the same values, which are close to the exact ones.
TEST(TaleGolden, TaleMlaInPackedFormats) {
  const std::string folder = shared_model("tale-mla");
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no ../shared/models/tale-mla";
  const auto ids = read_json(folder + "/golden.json").at("prompts")[0].at("input_ids").get<std::vector<int32_t>>();
  const auto exact = open_or_fail(folder)->feed(ids);
  ASSERT_TRUE(exact.ok());
  for (const auto& [format, bound] : {std::pair{KvFormat::fp8_ds_mla, 0.06}, {KvFormat::fp4_mla, 0.25}}) {
    SCOPED_TRACE(kv_format_name(format));
    const auto wanted = open_or_fail(folder, {.backend = "reference", .kv_format = format})->feed(ids);
    ASSERT_TRUE(wanted.ok());
    EXPECT_LT(relative_error(*wanted, *exact), bound);
    EXPECT_GT(relative_error(*wanted, *exact), bound / 100);
    for (const char* backend : {"torch_native", "intel_amx", "flex_attention", "triton"}) {
      if (std::string(backend) == "triton" && opencl::platform_name().empty()) continue;
      auto run = open_or_fail(folder, {.backend = backend, .kv_format = format, .page_size = 16});
      const auto got = run->feed(ids);
      ASSERT_TRUE(got.ok());
      EXPECT_LT(relative_error(*got, *wanted), 0.02) << backend;
      run->restart();
      std::vector<float> steps;  // a token at a time
      for (const int32_t id : ids) {
        const auto one = run->feed(std::span(&id, 1));
        ASSERT_TRUE(one.ok());
        steps.insert(steps.end(), one->begin(), one->end());
      }
      EXPECT_LT(relative_error(steps, *wanted), 0.02) << backend << " in steps";
    }
  }
}

// Three layers of linear attention to one with full attention, and experts.
TEST(TaleGolden, TaleGdnHybrid) {
  if (!std::filesystem::exists(shared_model("tale-gdn"))) GTEST_SKIP() << "no ../shared/models/tale-gdn";
  for (const char* linear_backend : {"cpu", "triton"}) {
    SCOPED_TRACE(linear_backend);
    if (std::string(linear_backend) == "triton" && opencl::platform_name().empty()) continue;
    expect_golden(shared_model("tale-gdn"), "torch_native", linear_backend);
  }
}

// Llamas with every tensor type that GGUF files may hold here; q and k in llama.cpp's row order.
class GgufGolden : public testing::TestWithParam<const char*> {
 protected:
  const std::string folder_ = std::string("tests/golden/families/") + GetParam();
  const json golden_ = read_json(folder_ + "/golden.json");
};

TEST_P(GgufGolden, TensorsDequantiseToTheSameValues) {
  auto bundle = open_model_bundle(folder_, {.load_format = "auto", .tokenizer_path = {}, .skip_tokenizer = true});
  ASSERT_TRUE(bundle.ok()) << bundle.status().message();
  const int64_t hidden = 256, ffn = 128, q = 64, kv = 32, vocab = 64;
  const std::map<std::string, std::vector<int64_t>> shapes = {
      {"model.embed_tokens.weight", {vocab, hidden}},
      {"model.norm.weight", {hidden}},
      {"lm_head.weight", {vocab, hidden}},
      {"model.layers.0.input_layernorm.weight", {hidden}},
      {"model.layers.0.self_attn.q_proj.weight", {q, hidden}},
      {"model.layers.0.self_attn.k_proj.weight", {kv, hidden}},
      {"model.layers.0.self_attn.v_proj.weight", {kv, hidden}},
      {"model.layers.0.self_attn.o_proj.weight", {hidden, q}},
      {"model.layers.0.post_attention_layernorm.weight", {hidden}},
      {"model.layers.0.mlp.gate_proj.weight", {ffn, hidden}},
      {"model.layers.0.mlp.up_proj.weight", {ffn, hidden}},
      {"model.layers.0.mlp.down_proj.weight", {hidden, ffn}},
  };
  ASSERT_EQ(golden_.at("tensors").size(), shapes.size());
  for (const auto& [name, expected] : golden_.at("tensors").items()) {
    auto view = bundle->weights->find(name, shapes.at(name));
    ASSERT_TRUE(view.ok()) << view.status().message();
    std::vector<float> values(view->elements());
    dequantize_row(view->dtype, view->data, view->elements(), values.data());
    double sum = 0;
    for (float x : values) sum += x;
    EXPECT_NEAR(sum, expected.at("sum").get<double>(), 1e-3) << name;
    for (size_t i = 0; i < expected.at("first").size(); ++i) {
      EXPECT_NEAR(values[i], expected.at("first")[i].get<float>(), 2e-6) << name << " value " << i;
    }
  }
}

TEST_P(GgufGolden, LogitsAndGreedyIdsAreTheSame) {
  auto run = open_or_fail(folder_ + "/model.gguf");
  ASSERT_NE(run, nullptr);
  auto ids = golden_.at("input_ids").get<std::vector<int32_t>>();
  const auto greedy = golden_.at("greedy_ids").get<std::vector<int32_t>>();
  auto got = run->greedy(ids, static_cast<int>(greedy.size()));
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(*got, greedy);
  ids.insert(ids.end(), greedy.begin(), greedy.end());
  run->restart();
  auto logits = run->feed(ids);
  ASSERT_TRUE(logits.ok());
  const int vocab = run->vocab_size();
  float worst = 0;
  for (size_t r = 0; r < ids.size(); ++r) {
    for (int c = 0; c < vocab; ++c) {
      worst = std::max(worst, std::fabs((*logits)[r * vocab + c] - golden_["logits"][r][c].get<float>()));
    }
  }
  EXPECT_LE(worst, 2e-4);
}

TEST_P(GgufGolden, TokenizerAndTemplateComeWithTheFile) {
  auto bundle = open_model_bundle(folder_ + "/model.gguf", {});
  ASSERT_TRUE(bundle.ok()) << bundle.status().message();
  ASSERT_NE(bundle->tokenizer, nullptr);
  EXPECT_EQ(bundle->tokenizer->vocab_size(), 64);
  EXPECT_EQ(bundle->chat_template, "{{ messages[0]['content'] }}");
  EXPECT_EQ(bundle->eos_token_ids, std::vector<int32_t>{1});
}

INSTANTIATE_TEST_SUITE_P(All, GgufGolden, testing::Values("gguf", "gguf-iq4"),
                         [](const auto& info) { return std::string(info.param) == "gguf" ? "most" : "iq4"; });

}  // namespace
}  // namespace warpweave
