// Models whose hidden and intermediate sizes are no multiples of 8, on the GPU against the CPU: made-up weights of the
// families' small configurations with other widths. Skipped without a GPU.
#include <gtest/gtest.h>

#include <numeric>
#include <nlohmann/json.hpp>

#include "model/testing/gpu_run.h"
#include "model/testing/model_folder_testing.h"
#include "model/testing/paged_run.h"

namespace warpweave {
namespace {

using nlohmann::json;

struct Widths {
  const char* family;
  json changes;
  bool rounds_to_8_bits = false;
  int block = 0;       // of scales; 0: a scale a row
  size_t prompt = 66;  // rows of its first chunk
};

class GpuWidthsTest : public testing::TestWithParam<Widths> {
 protected:
  void SetUp() override {
    json config = json::parse(read_file(std::string("tests/golden/families/") + GetParam().family + "/config.json"));
    config.update(GetParam().changes);
    write_file(folder_ / "config.json", config.dump());
    if (GetParam().rounds_to_8_bits) fp8_ = Fp8Config{GetParam().block, GetParam().block};
    ids_.resize(GetParam().prompt + 4);  // GEMMs of many rows; then some of one
    for (size_t i = 0; i < ids_.size(); ++i) ids_[i] = static_cast<int32_t>((i * 37 + 11) % 96);
  }

  Result<std::vector<float>> on_cpu() {
    WW_ASSIGN_OR_RETURN(auto run, PagedRun::open(folder_.path(), {.max_tokens = most_tokens(), .load_format = "dummy", .fp8 = fp8_}));
    return feed_all(*run);
  }
  Result<std::vector<float>> on_gpu(DType dtype, DeviceArch arch) {
    WW_ASSIGN_OR_RETURN(auto run, GpuRun::open(folder_.path(), {.dtype = dtype, .kv_format = *kv_format_of(dtype),
                                                         .load_format = "dummy", .fp8 = fp8_}, arch));
    return feed_all(*run);
  }

  int most_tokens() const { return std::max(128, static_cast<int>(ids_.size())); }
  // A prompt in two chunks, then steps of one token.
  template <typename Run>
  Result<std::vector<float>> feed_all(Run& run) {
    std::vector<float> out;
    const size_t prompt = GetParam().prompt;
    for (size_t done = 0, chunk = prompt; done < ids_.size(); done += chunk, chunk = done < prompt + 2 ? 2 : 1) {
      WW_ASSIGN_OR_RETURN(const auto logits, run.feed(std::span(ids_).subspan(done, chunk)));
      out.insert(out.end(), logits.begin(), logits.end());
    }
    return out;
  }

  const TemporaryFolder folder_;
  std::optional<Fp8Config> fp8_;
  std::vector<int32_t> ids_;
};

TEST_P(GpuWidthsTest, LogitsAreThoseOfTheCpu) {
  WW_NEED_GPU(arch);
  const auto exact = on_cpu();
  ASSERT_TRUE(exact.ok()) << exact.status().message();
  if (!GetParam().rounds_to_8_bits) {
    const auto same = on_gpu(DType::f32, *arch);
    ASSERT_TRUE(same.ok()) << same.status().message();
    EXPECT_LT(relative_error(*same, *exact), 2e-5);
  }
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const auto close = on_gpu(dtype, *arch);
    ASSERT_TRUE(close.ok()) << close.status().message();
    const std::string family = GetParam().family;
    const bool chooses = family.ends_with("moe") || family == "qwen3-next";  // other experts now and then
    EXPECT_LT(relative_error(*close, *exact), chooses ? 0.3 : GetParam().rounds_to_8_bits ? 0.15 : 0.05);
  }
}

const json kOdd = {{"hidden_size", 50}, {"intermediate_size", 37}};
const json kOddExperts = {{"hidden_size", 50}, {"intermediate_size", 37}, {"moe_intermediate_size", 21},
                          {"shared_expert_intermediate_size", 21}};
const json kBlocks = {{"hidden_size", 256}, {"intermediate_size", 128}, {"moe_intermediate_size", 128}, {"head_dim", 64}, {"num_hidden_layers", 4}, {"max_position_embeddings", 512}};
const json kWideExperts = {{"hidden_size", 101}, {"intermediate_size", 90}, {"moe_intermediate_size", 75}};

INSTANTIATE_TEST_SUITE_P(
    Families, GpuWidthsTest,
    testing::Values(Widths{"llama", kOdd}, Widths{"llama", {{"hidden_size", 51}, {"intermediate_size", 64}}},
                    Widths{"llama", {{"hidden_size", 36}, {"intermediate_size", 36}}},
                    Widths{"llama", {{"hidden_size", 64}, {"intermediate_size", 37}}},
                    Widths{"llama", {{"hidden_size", 128}, {"intermediate_size", 37}}, true},
                    Widths{"gemma3", kOdd}, Widths{"starcoder2", kOdd}, Widths{"cohere2", kOdd},
                    Widths{"lfm2", {{"intermediate_size", 37}, {"block_auto_adjust_ff_dim", false}}},
                    Widths{"mixtral-moe", kOdd}, Widths{"mixtral-moe", {{"intermediate_size", 37}}},
                    Widths{"mixtral-moe", kWideExperts}, Widths{"mixtral-moe", {{"hidden_size", 36}}},
                    Widths{"mixtral-moe", {{"intermediate_size", 37}}, true}, Widths{"phimoe-moe", kOdd},
                    Widths{"qwen3-moe", kBlocks, true, 128}, Widths{"qwen3-moe", kBlocks, true, 128, 264}, Widths{"gpt-oss", kOdd}, Widths{"qwen2-moe", kOddExperts},
                    Widths{"qwen2-moe", {{"moe_intermediate_size", 21}, {"shared_expert_intermediate_size", 42}}},
                    Widths{"deepseek-v3-moe", kWideExperts}, Widths{"qwen3-next", kOddExperts}),
    [](const auto& info) {
      std::string name = std::string(info.param.family) + "_" + std::to_string(info.index);
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

}  // namespace
}  // namespace warpweave
