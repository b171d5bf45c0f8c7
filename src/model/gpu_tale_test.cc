// The GPU's decoder on the models that come along, in every type and format, against goldens and the CPU. Skipped
// without a GPU.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "model/testing/gpu_run.h"
#include "model/testing/paged_run.h"
#include "model/testing/shared_model.h"

namespace warpweave {
namespace {

using nlohmann::json;

void expect_tale_golden(const std::string& folder, const GpuRunOptions& options, DeviceArch arch) {
  const json golden = json::parse(std::ifstream(folder + "/golden.json"));
  for (const json& prompt : golden.at("prompts")) {
    auto run = GpuRun::open(folder, options, arch);
    ASSERT_TRUE(run.ok()) << run.status().message();
    const auto ids = prompt.at("input_ids").get<std::vector<int32_t>>();
    const auto expected = prompt.at("greedy_ids").get<std::vector<int32_t>>();
    auto greedy = (*run)->greedy(ids, static_cast<int>(expected.size()));
    ASSERT_TRUE(greedy.ok()) << greedy.status().message();
    EXPECT_EQ(*greedy, expected);
  }
}

// The golden's prompts one behind the other, over and over until there are `at_least` ids.
std::vector<int32_t> all_prompts(const std::string& folder, size_t at_least = 1) {
  const json golden = json::parse(std::ifstream(folder + "/golden.json"));
  std::vector<int32_t> ids;
  while (ids.size() < at_least) {
    for (const json& prompt : golden.at("prompts")) {
      for (int32_t id : prompt.at("input_ids").get<std::vector<int32_t>>()) ids.push_back(id);
    }
  }
  return ids;
}

// The logits of all ids, fed one by one.
Result<std::vector<float>> feed_in_steps(GpuRun& run, std::span<const int32_t> ids) {
  std::vector<float> out;
  for (const int32_t& id : ids) {
    WW_ASSIGN_OR_RETURN(const std::vector<float> one, run.feed(std::span(&id, 1)));
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

TEST(GpuTale, GreedyIsTheGoldenInF32) {
  WW_NEED_GPU(arch);
  expect_tale_golden("models/tale-llama", {.page_size = 16}, *arch);
}

// The fp8 and fp4 pools, every page size: close to the f32 pool, and not equal to it.
TEST(GpuTale, EveryKvFormatWritesAndReadsThePool) {
  WW_NEED_GPU(arch);
  const json golden = json::parse(std::ifstream("models/tale-llama/golden.json"));
  const auto ids = golden.at("prompts")[0].at("input_ids").get<std::vector<int32_t>>();
  auto exact_run = GpuRun::open("models/tale-llama", {}, *arch);
  ASSERT_TRUE(exact_run.ok());
  const auto exact = (*exact_run)->feed(ids);
  ASSERT_TRUE(exact.ok());
  for (const auto& [format, bound] : {std::pair{KvFormat::bf16, 0.02}, {KvFormat::f16, 0.01},
                                      {KvFormat::fp8_e4m3, 0.15}, {KvFormat::fp8_e5m2, 0.25},
                                      {KvFormat::fp4_e2m1, 0.6}}) {
    for (int page_size : {1, 16}) {
      auto run = GpuRun::open("models/tale-llama", {.kv_format = format, .page_size = page_size}, *arch);
      ASSERT_TRUE(run.ok()) << run.status().message();
      const auto logits = (*run)->feed(ids);
      ASSERT_TRUE(logits.ok()) << logits.status().message();
      const double error = relative_error(*logits, *exact);
      EXPECT_LT(error, bound) << kv_format_name(format) << " page " << page_size;
      EXPECT_GT(error, 0) << kv_format_name(format);
    }
  }
}

TEST(GpuTale, SixteenBitPrefillAndDecodeStayClose) {
  WW_NEED_GPU(arch);
  const json golden = json::parse(std::ifstream("models/tale-llama/golden.json"));
  const auto ids = golden.at("prompts")[0].at("input_ids").get<std::vector<int32_t>>();
  auto exact_run = GpuRun::open("models/tale-llama", {}, *arch);
  ASSERT_TRUE(exact_run.ok());
  const auto exact = (*exact_run)->feed(ids);
  ASSERT_TRUE(exact.ok());
  for (const DType dtype : {DType::bf16, DType::f16}) {
    auto run = GpuRun::open("models/tale-llama", {.dtype = dtype, .kv_format = *kv_format_of(dtype), .page_size = 16},
                            *arch);
    ASSERT_TRUE(run.ok()) << run.status().message();
    const auto whole = (*run)->feed(ids);
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    EXPECT_LT(relative_error(*whole, *exact), dtype == DType::bf16 ? 0.03 : 0.005);
    (*run)->restart();
    const auto steps = feed_in_steps(**run, ids);
    ASSERT_TRUE(steps.ok()) << steps.status().message();
    EXPECT_LT(relative_error(*steps, *exact), dtype == DType::bf16 ? 0.03 : 0.005);
  }
}

// 8-bit weights: the CPU in f32 with the same rounded weights is the oracle. Steps of one row multiply 16-bit
// inputs; a prompt's rows are rounded to 8 bits, which moves these logits by 0.039 in PyTorch, and not where
// weights are widened.
TEST(GpuTale, EightBitWeightsAreThoseOfTheCpu) {
  WW_NEED_GPU(arch);
  std::vector<int32_t> ids = all_prompts("models/tale-llama");
  ids.resize(std::min<size_t>(ids.size(), 48));  // more than one step's rows, a multiple of 4
  ASSERT_EQ(ids.size(), 48u);
  for (const Fp8Config& fp8 : {Fp8Config{}, Fp8Config{128, 128}}) {
    auto cpu = PagedRun::open("models/tale-llama", {.fp8 = fp8});
    ASSERT_TRUE(cpu.ok()) << cpu.status().message();
    const auto exact = (*cpu)->feed(ids);
    ASSERT_TRUE(exact.ok());
    for (const DType dtype : {DType::bf16, DType::f16}) {
      auto run = GpuRun::open("models/tale-llama", {.dtype = dtype, .kv_format = *kv_format_of(dtype), .page_size = 16,
                                                    .fp8 = fp8}, *arch);
      ASSERT_TRUE(run.ok()) << run.status().message();
      const double close = dtype == DType::bf16 ? 0.03 : 0.01;
      const auto steps = feed_in_steps(**run, ids);
      ASSERT_TRUE(steps.ok()) << steps.status().message();
      EXPECT_LT(relative_error(*steps, *exact), close) << fp8.block_rows << " " << dtype_info(dtype).name;
      for (const auto& [path, bound] : {std::pair{gpu::Fp8Path::automatic, 0.08}, {gpu::Fp8Path::widen, close}}) {
        (*run)->restart();
        (*run)->gemm().set_fp8_path(path);
        const auto whole = (*run)->feed(ids);
        ASSERT_TRUE(whole.ok()) << whole.status().message();
        EXPECT_LT(relative_error(*whole, *exact), bound) << fp8.block_rows << " " << dtype_info(dtype).name;
      }
    }
    auto f32 = GpuRun::open("models/tale-llama", {.fp8 = fp8}, *arch);  // widened while it is read
    ASSERT_TRUE(f32.ok()) << f32.status().message();
    const auto logits = (*f32)->feed(ids);
    ASSERT_TRUE(logits.ok());
    EXPECT_LT(relative_error(*logits, *exact), 1e-4) << fp8.block_rows;
  }
}

TEST(GpuTale, EightBitExpertsAreThoseOfTheCpu) {
  WW_NEED_GPU(arch);
  const std::string folder = "tests/golden/families/qwen3-moe";
  const json golden = json::parse(std::ifstream(folder + "/golden.json"));
  const auto ids = golden.at("input_ids").get<std::vector<int32_t>>();
  for (const Fp8Config& fp8 : {Fp8Config{}, Fp8Config{16, 16}, Fp8Config{128, 128}}) {
    auto cpu = PagedRun::open(folder, {.fp8 = fp8});
    ASSERT_TRUE(cpu.ok()) << cpu.status().message();
    const auto exact = (*cpu)->feed(ids);
    auto run = GpuRun::open(folder, {.dtype = DType::f16, .kv_format = KvFormat::f16, .fp8 = fp8}, *arch);
    ASSERT_TRUE(run.ok()) << run.status().message();
    ASSERT_TRUE(exact.ok());
    // 8-bit activations move the logits of random weights, of 32 columns, by much more than rounding does.
    for (const auto& [path, bound] : {std::pair{gpu::Fp8Path::automatic, 0.2}, {gpu::Fp8Path::widen, 0.01}}) {
      (*run)->restart();
      (*run)->gemm().set_fp8_path(path);
      const auto logits = (*run)->feed(ids);
      ASSERT_TRUE(logits.ok());
      EXPECT_LT(relative_error(*logits, *exact), bound) << fp8.block_rows;
    }
  }
}

TEST(GpuTale, LatentAttentionOfTheSharedModel) {
  WW_NEED_GPU(arch);
  const std::string folder = shared_model("tale-mla");
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  expect_tale_golden(folder, {.page_size = 16}, *arch);
}

// Every name's kernels, in prompts, chunks and steps, on its own page size and on others: close to the f32 run.
TEST(GpuTale, LatentAttentionUnderEveryName) {
  WW_NEED_GPU(arch);
  const std::string folder = shared_model("tale-mla");
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  if (*arch != DeviceArch::sm_90) GTEST_SKIP() << "kernels for sm_90";
  const std::vector<int32_t> ids = all_prompts(folder, 200);
  auto exact_run = GpuRun::open(folder, {}, *arch);
  ASSERT_TRUE(exact_run.ok()) << exact_run.status().message();
  const auto exact = (*exact_run)->feed(ids);
  ASSERT_TRUE(exact.ok());
  struct Pool {
    DType dtype;
    KvFormat format;
    int page_size;
    double bound;
  };
  constexpr DType kBf16 = DType::bf16;
  const Pool pools[] = {
      {kBf16, KvFormat::bf16, 64, 0.04},
      {kBf16, KvFormat::bf16, 1, 0.04},
      {DType::f16, KvFormat::f16, 53, 0.01},
      {kBf16, KvFormat::fp8_e4m3, 32, 0.25},
      {kBf16, KvFormat::fp8_ds_mla, 32, 0.1},
      {kBf16, KvFormat::fp8_ds_mla, 1, 0.1},
      {kBf16, KvFormat::fp4_mla, 64, 0.3},
      {kBf16, KvFormat::fp4_mla, 1, 0.3},
  };
  constexpr double kPackedBound = 0.03;
  // The host's, of the same formats: bytes are the same but where bf16's rounding before was another.
  std::map<KvFormat, std::vector<float>> host;
  for (const KvFormat format : {KvFormat::fp8_ds_mla, KvFormat::fp4_mla}) {
    auto run = PagedRun::open(folder, {.kv_format = format, .max_tokens = 512});
    ASSERT_TRUE(run.ok()) << run.status().message();
    auto logits = (*run)->feed(ids);
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    host[format] = *std::move(logits);
  }
  for (const char* name : {"fa3", "fa4", "flashmla", "cutlass_mla", "trtllm_mla", "flashinfer", "triton",
                           "flex_attention", "torch_native"}) {
    for (const Pool& pool : pools) {
      auto run = GpuRun::open(
          folder, {.backend = name, .dtype = pool.dtype, .kv_format = pool.format, .page_size = pool.page_size}, *arch);
      ASSERT_TRUE(run.ok()) << run.status().message();
      std::vector<float> chunks;
      for (size_t done = 0; done < ids.size();) {
        const size_t count = std::min<size_t>(ids.size() - done, done < 100 ? 100 : done < 150 ? 7 : 1);
        const auto logits = (*run)->feed(std::span(ids).subspan(done, count));
        ASSERT_TRUE(logits.ok()) << logits.status().message();
        chunks.insert(chunks.end(), logits->begin(), logits->end());
        done += count;
      }
      EXPECT_LT(relative_error(chunks, *exact), pool.bound)
          << name << " " << kv_format_name(pool.format) << " page " << pool.page_size;
      if (kv_format_is_packed(pool.format)) {
        EXPECT_LT(relative_error(chunks, host[pool.format]), kPackedBound) << name << " " << kv_format_name(pool.format);
      }
    }
  }
}

TEST(GpuTale, SlidingWindowOfTheSharedModel) {
  WW_NEED_GPU(arch);
  const std::string folder = shared_model("tale-swa");
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  expect_tale_golden(folder, {.page_size = 16}, *arch);
}

// Recurrent layers: in f32 the golden's tokens; in bf16, by chunks of 16-bit GEMMs, close to that, under every name
// of their kernels; a sequence that goes on from a copy of its state is the one that went on.
TEST(GpuTale, GatedDeltaNetsOfTheSharedModel) {
  WW_NEED_GPU(arch);
  const std::string folder = shared_model("tale-gdn");
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  expect_tale_golden(folder, {.page_size = 16}, *arch);
  const std::vector<int32_t> ids = all_prompts(folder);
  auto exact_run = GpuRun::open(folder, {}, *arch);
  ASSERT_TRUE(exact_run.ok()) << exact_run.status().message();
  const auto exact = (*exact_run)->feed(ids);
  ASSERT_TRUE(exact.ok()) << exact.status().message();
  for (const char* linear : {"triton", "flashinfer", "cutedsl"}) {
    if (linear == std::string("cutedsl") && *arch != DeviceArch::sm_90) continue;
    for (const DType state : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(std::string(linear) + ", state " + std::string(dtype_info(state).name));
      auto run = GpuRun::open(
          folder,
          {.dtype = DType::bf16, .kv_format = KvFormat::bf16, .page_size = 16, .linear = linear, .state_dtype = state},
          *arch);
      ASSERT_TRUE(run.ok()) << run.status().message();
      const auto whole = (*run)->feed(ids);
      ASSERT_TRUE(whole.ok()) << whole.status().message();
      EXPECT_LT(relative_error(*whole, *exact), 0.05);
      (*run)->restart();
      const auto steps = feed_in_steps(**run, ids);
      ASSERT_TRUE(steps.ok()) << steps.status().message();
      EXPECT_LT(relative_error(*steps, *exact), 0.05);
    }
  }
  const size_t half = ids.size() / 2;
  const std::span<const int32_t> first(ids.data(), half), second(ids.data() + half, ids.size() - half);
  GpuRun& run = **exact_run;
  run.restart();
  ASSERT_TRUE(run.feed(first).ok());
  const StateCopy save[] = {{kRunStateSlot, 2}}, load[] = {{2, kRunStateSlot}};
  ASSERT_TRUE(run.states().copy(save, run.stream()).ok());
  const auto went_on = run.feed(second);
  run.go_on_at(static_cast<int>(half));
  ASSERT_TRUE(run.states().copy(load, run.stream()).ok());
  const auto again = run.feed(second);
  ASSERT_TRUE(went_on.ok() && again.ok());
  EXPECT_EQ(*went_on, *again);
}

}  // namespace
}  // namespace warpweave
