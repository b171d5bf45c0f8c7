// triton, flex_attention with its modifiers and dual_chunk_flash_attn, served on the CPU and on a GPU: equal
// tokens however prompts are cut, the goldens where the modifiers say nothing new, and what the flags
// refuse. Skips the GPU where there is none, or no NVRTC.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "attention/registry.h"
#include "attention/select.h"
#include "base/testing/temporary_folder.h"
#include "device/cuda/cuda_device.h"
#include "engine/testing/asking.h"

namespace warpweave {
namespace {

constexpr const char* kModel = "models/tale-llama";

ServerArgs flex_args(const std::string& device) {
  ServerArgs args;
  args.dtype = "float32";
  args.attention_backend = "flex_attention";
  args.device = device;
  return args;
}

Result<ServedModel> serve(ServerArgs args, const std::string& path = kModel) {
  args.model_path = path;
  return create_engine({.args = args, .model_path = path, .on_weights_progress = {}});
}

// The greedy continuation of each prompt, all submitted at once.
std::vector<Ids> greedy(const ServerArgs& args, const std::vector<Ids>& prompts, const std::string& path = kModel) {
  auto served = serve(args, path);
  EXPECT_TRUE(served.ok()) << served.status().message();
  if (!served.ok()) return std::vector<Ids>(prompts.size());
  std::vector<Ids> ids;
  for (const Answer& answer : ask(*served, prompts, 24)) ids.push_back(answer.ids);
  return ids;
}

// Why a device's backends cannot run here; empty: they can.
std::string missing(const std::string& device, const char* backend) {
  if (device == "cpu") return {};
  const auto gpu = probe_cuda_device();
  if (!gpu.ok()) return gpu.status().message();
  const auto arch = arch_of_compute_capability(gpu->compute_capability);
  for (const BackendRegistration& built : built_backends()) {
    if (built.caps->name != backend || !arch || !built.caps->archs.has(*arch)) continue;
    const Status lacks = built.probe ? built.probe(Probe::thorough) : Status();
    return lacks.ok() ? "" : lacks.message();
  }
  return std::string("no kernels of ") + backend + " for " + gpu->name;
}

struct Goldens {
  std::vector<std::vector<int32_t>> prompts, continuations;  // of 24 tokens
};

Goldens goldens() {
  Goldens out;
  const auto golden = nlohmann::json::parse(std::ifstream(std::string(kModel) + "/golden.json"));
  for (const auto& prompt : golden["prompts"]) {
    out.prompts.push_back(prompt["input_ids"]);
    auto ids = prompt["greedy_ids"].get<std::vector<int32_t>>();
    ids.resize(24);
    out.continuations.push_back(std::move(ids));
  }
  return out;
}

class FlexServing : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = missing(GetParam(), "flex_attention"); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(FlexServing, GoldensWithoutModifiersAndWithOnesThatChangeNothing) {
  const Goldens golden = goldens();
  ServerArgs args = flex_args(GetParam());
  EXPECT_EQ(greedy(args, golden.prompts), golden.continuations);
  args.flex_attention_mask_mod = "causal && window(wide)";
  args.flex_attention_score_mod = "score + nothing * (q_idx - kv_idx)";
  args.flex_attention_params = "wide=100000, nothing=0.0";
  args.chunked_prefill_size = 5;
  args.page_size = 3;
  EXPECT_EQ(greedy(args, golden.prompts), golden.continuations);
}

TEST_P(FlexServing, ModifiersHoldInBothPhasesAndAnyChunk) {
  const Goldens golden = goldens();
  ServerArgs args = flex_args(GetParam());
  args.flex_attention_mask_mod = "window(6)";
  args.flex_attention_score_mod = "softcap(20, alibi)";
  const auto whole = greedy(args, golden.prompts);
  EXPECT_NE(whole, golden.continuations);
  args.chunked_prefill_size = 3;
  args.page_size = 2;
  args.enable_mixed_chunk = true;
  EXPECT_EQ(greedy(args, golden.prompts), whole);
}

INSTANTIATE_TEST_SUITE_P(Devices, FlexServing, testing::Values("cpu", "cuda"));

TEST(FlexServingFlags, AreChecked) {
  const auto refused = [](const ServerArgs& args, const char* flag, const char* message) {
    const auto served = serve(args);
    ASSERT_FALSE(served.ok());
    EXPECT_EQ(served.status().field(), flag);
    EXPECT_NE(served.status().message().find(message), std::string::npos) << served.status().message();
  };
  ServerArgs args = flex_args("cpu");
  args.flex_attention_mask_mod = "causal &&";
  refused(args, "--flex-attention-mask-mod", "column 10: expected a number");
  args.flex_attention_mask_mod = "";
  args.flex_attention_score_mod = "causal";
  refused(args, "--flex-attention-score-mod", "the result must be a number");
  args.flex_attention_score_mod = "score";
  args.flex_attention_params = "slope";
  refused(args, "--flex-attention-params", "expected '='");
  args.flex_attention_params = "";
  args.decode_attention_backend = "intel_amx";
  refused(args, "--flex-attention-score-mod",
          "is for flex_attention, but prefill runs on flex_attention and decode on intel_amx");
  args = flex_args("cpu");
  args.flex_attention_mask_mod = "prefix_lm(4)";
  refused(args, "--flex-attention-mask-mod", "may show a row later tokens");
  args.chunked_prefill_size = -1;
  args.disable_radix_cache = true;
  EXPECT_TRUE(serve(args).ok());
}

// Graphs of several sizes, and prompts cut into chunks.
TEST(TritonServing, GoldensOnAGpu) {
  if (const std::string why = missing("cuda", "triton"); !why.empty()) GTEST_SKIP() << why;
  const Goldens golden = goldens();
  ServerArgs args = flex_args("cuda");
  args.attention_backend = "triton";
  EXPECT_EQ(greedy(args, golden.prompts), golden.continuations);
  args.chunked_prefill_size = 7;
  args.page_size = 16;
  EXPECT_EQ(greedy(args, golden.prompts), golden.continuations);
}

class DualChunkServing : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = missing(GetParam(), "dual_chunk_flash_attn"); !why.empty()) GTEST_SKIP() << why;
    std::ofstream(folder_ / "config.json") << R"({"architectures": ["Qwen2ForCausalLM"],
      "model_type": "qwen2", "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
      "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "hidden_act": "silu",
      "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 1,
      "dual_chunk_attention_config": {"chunk_size": 48, "local_size": 16,
                                      "original_max_position_embeddings": 100}})";
  }
  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_P(DualChunkServing, AnyChunkAndPageGivesTheSameTokens) {
  ServerArgs args;
  args.device = GetParam();
  args.dtype = "float32";
  args.load_format = "dummy";
  args.random_seed = 7;
  args.skip_tokenizer_init = true;
  std::vector<std::vector<int32_t>> prompts;
  for (int length : {20, 90, 200}) {
    prompts.emplace_back();
    for (int i = 0; i < length; ++i) prompts.back().push_back((i * 37 + i / 5) % 128);
  }
  {
    const auto served = serve(args, folder_);
    ASSERT_TRUE(served.ok()) << served.status().message();
    EXPECT_EQ(served->attention.prefill, "dual_chunk_flash_attn");
    EXPECT_EQ(served->attention.decode, "dual_chunk_flash_attn");
  }
  const auto whole = greedy(args, prompts, folder_);
  args.chunked_prefill_size = 11;
  args.page_size = 8;
  args.enable_mixed_chunk = true;
  EXPECT_EQ(greedy(args, prompts, folder_), whole);
  args.attention_backend = "intel_amx";
  EXPECT_FALSE(serve(args, folder_).ok());
  args.attention_backend = {};
  args.device = "cpu";
  EXPECT_EQ(greedy(args, prompts, folder_), whole);
}

INSTANTIATE_TEST_SUITE_P(Devices, DualChunkServing, testing::Values("cpu", "cuda"));

}  // namespace
}  // namespace warpweave
