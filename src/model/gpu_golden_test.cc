// The GPU's decoder against the goldens of every family. Skipped without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/gpu_expert_load.h"
#include "model/testing/gpu_run.h"

namespace warpweave {
namespace {

using nlohmann::json;

class GpuFamilyTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    folder_ = "tests/golden/families/" + name;
    path_ = folder_ + (name.starts_with("gguf") ? "/model.gguf" : "");
    const json golden = json::parse(std::ifstream(folder_ + "/golden.json"));
    prompt_ = golden.at("input_ids").get<std::vector<int32_t>>();
    greedy_ = golden.at("greedy_ids").get<std::vector<int32_t>>();
    for (const auto& row : golden.at("logits")) {
      for (const auto& value : row) logits_.push_back(value.get<float>());
    }
    ids_ = prompt_;
    ids_.insert(ids_.end(), greedy_.begin(), greedy_.end());
  }
  std::string folder_, path_;
  std::vector<int32_t> prompt_, greedy_, ids_;
  std::vector<float> logits_;
};

TEST_P(GpuFamilyTest, PrefillChunksAndDecodeGiveTheGoldenLogits) {
  WW_NEED_GPU(arch);
  auto run = GpuRun::open(path_, {}, *arch);
  ASSERT_TRUE(run.ok()) << run.status().message();
  std::vector<float> all;
  for (size_t done = 0, chunk = 7; done < ids_.size(); done += chunk, chunk = done < 14 ? 7 : 1) {
    chunk = std::min(chunk, ids_.size() - done);
    auto logits = (*run)->feed(std::span(ids_).subspan(done, chunk));
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    all.insert(all.end(), logits->begin(), logits->end());
  }
  ASSERT_EQ(all.size(), logits_.size());
  float worst = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const float d = std::fabs(all[i] - logits_[i]);
    worst = d <= worst ? worst : d;
  }
  EXPECT_LE(worst, 3e-4f);
}

TEST_P(GpuFamilyTest, GreedyIsTheGolden) {
  WW_NEED_GPU(arch);
  auto run = GpuRun::open(path_, {.page_size = 1}, *arch);
  ASSERT_TRUE(run.ok()) << run.status().message();
  auto ids = (*run)->greedy(prompt_, static_cast<int>(greedy_.size()));
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  EXPECT_EQ(*ids, greedy_);
}

TEST_P(GpuFamilyTest, SixteenBitTypesStayClose) {
  WW_NEED_GPU(arch);
  const std::string name = GetParam();
  const bool experts = name.find("moe") != std::string::npos || name == "qwen3-next";
  for (const DType dtype : {DType::bf16, DType::f16}) {
    auto run = GpuRun::open(path_, {.dtype = dtype, .kv_format = *kv_format_of(dtype)}, *arch);
    ASSERT_TRUE(run.ok()) << run.status().message();
    auto logits = (*run)->feed(ids_);
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    EXPECT_LT(relative_error(*logits, logits_), experts ? 0.15 : 0.08) << dtype_info(dtype).name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, GpuFamilyTest,
    testing::Values("llama", "llama-bias", "mistral", "qwen2", "qwen3", "qwen3-moe", "mixtral-moe", "olmoe-moe",
                    "qwen2-moe", "glm4-moe", "phimoe-moe", "phimoe-moe-long", "gemma2", "gemma3", "gpt-oss", "gguf",
                    "phi3", "phi3-long", "olmo2", "olmo3", "granite", "cohere2", "gemma", "glm4", "smollm3", "stablelm",
                    "stablelm-parallel", "starcoder2", "falcon3", "exaone4", "ernie4_5", "hunyuan", "seed_oss",
                    "dynamic", "qwen3-next", "deepseek-v2-moe", "deepseek-v2-groups-moe", "deepseek-v3-moe",
                    "deepseek-v3-halves-moe", "qwen3_5", "qwen3_5-moe", "qwen3_5-bias", "qwen3_5-moe-wrapped", "lfm2",
                    "lfm2-bias", "lfm2-moe", "gguf-lfm2", "kimi-linear-moe", "jet-nemotron", "gguf-deepseek-v3-moe",
                    "gguf-deepseek-v2-joined-moe", "gguf-deepseek-blocks-moe", "gguf-kimi-linear-moe",
                    "gguf-qwen3-next-moe", "gguf-qwen3_5", "gguf-qwen3_5-moe"),
    [](const auto& info) {
      std::string name = info.param;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// As on the CPU (family_test.cc): layer 1 of 3 is dense, the last layer's experts see the row with wanted logits alone.
TEST(GpuFamilyMoe, CountsWhichExpertsWereChosen) {
  WW_NEED_GPU(arch);
  auto run = GpuRun::open("tests/golden/families/qwen3-moe", {}, *arch);
  ASSERT_TRUE(run.ok()) << run.status().message();
  auto counted = GpuExpertLoad::create((*run)->model());
  ASSERT_TRUE(counted.ok() && *counted != nullptr);
  EXPECT_TRUE((*counted)->summary().empty());
  const int32_t ids[] = {5, 6, 7, 8, 9, 10, 11, 12};
  ASSERT_TRUE((*run)->feed(ids, 1).ok());
  const std::vector<ExpertLayerLoad> load = (*counted)->summary();
  ASSERT_EQ(load.size(), 2u);
  EXPECT_EQ(load[0].layer, 0);
  EXPECT_EQ(load[0].experts, 6);
  EXPECT_EQ(load[0].choices, 8 * 2u);
  EXPECT_GE(load[0].busiest, 3u);
  EXPECT_LE(load[0].busiest, 8u);
  EXPECT_EQ(load[1].layer, 2);
  EXPECT_EQ(load[1].choices, 2u);
  EXPECT_EQ(load[1].never_chosen, 4);

  auto dense = GpuRun::open("tests/golden/families/llama", {}, *arch);
  ASSERT_TRUE(dense.ok()) << dense.status().message();
  auto none = GpuExpertLoad::create((*dense)->model());
  EXPECT_TRUE(none.ok() && *none == nullptr);
}

}  // namespace
}  // namespace warpweave
