// Adapters on the GPU against what PEFT computes with them. Skipped without a GPU.
#include <gtest/gtest.h>

#include "lora/gpu_adapters.h"
#include "lora/testing/golden_testing.h"
#include "model/testing/gpu_run.h"
#include "model/testing/max_difference.h"

namespace warpweave {
namespace {

using namespace lora_golden;

class GpuLoraGolden : public testing::TestWithParam<const char*> {
 protected:
  void open(DType dtype) {
    WW_NEED_GPU(arch);
    golden_ = read_golden(GetParam());
    const auto bundle = open_model_bundle(golden_.model, {.tokenizer_path = {}, .skip_tokenizer = true});
    ASSERT_TRUE(bundle.ok()) << bundle.status().message();
    const auto targets = lora_targets(bundle->config);
    ASSERT_TRUE(targets.ok());
    auto memory = GpuAdapters::create(*targets, {.max_rank = 16, .max_loaded = 3, .dtype = dtype});
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    memory_ = std::move(memory).value();
    const LoraLimits limits = {.max_rank = 16, .modules = {}};
    for (std::unique_ptr<LoraAdapter>& adapter : adapters_) {  // the second is used: another slot than 0
      const auto placer = memory_->placer();
      auto loaded = load_lora_adapter(adapter_folder(GetParam()), {*targets, limits, dtype}, *placer);
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      adapter = std::move(loaded).value();
    }
    auto run = GpuRun::open(golden_.model,
                            {.dtype = dtype, .kv_format = *kv_format_of(dtype), .adapters = &memory_->model()}, *arch);
    ASSERT_TRUE(run.ok()) << run.status().message();
    run_ = std::move(run).value();
  }
  int slot() const { return adapters_[1]->on_device->slot; }

  Golden golden_;
  std::shared_ptr<GpuAdapters> memory_;
  std::unique_ptr<LoraAdapter> adapters_[2];
  std::unique_ptr<GpuRun> run_;
};

TEST_P(GpuLoraGolden, PrefillChunksAndDecodeGivePeftsLogits) {
  ASSERT_NO_FATAL_FAILURE(open(DType::f32));
  if (run_ == nullptr) return;
  const auto plain = run_->feed(golden_.ids);
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_GT(max_difference(*plain, golden_.logits), 0.1f);  // the adapter matters
  run_->restart();
  run_->set_adapter(slot());
  std::vector<float> all;
  for (size_t done = 0; done < golden_.ids.size();) {
    const size_t count = std::min<size_t>(done < 14 ? 7 : 1, golden_.ids.size() - done);
    const auto logits = run_->feed(std::span(golden_.ids).subspan(done, count));
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    all.insert(all.end(), logits->begin(), logits->end());
    done += count;
  }
  EXPECT_LE(max_difference(all, golden_.logits), 2 * kTolerance);
  run_->restart();
  run_->set_adapter(-1);
  EXPECT_EQ(*run_->feed(golden_.ids), *plain);  // nothing of it stays
}

TEST_P(GpuLoraGolden, OnlyTheWantedRowsGiveTheSameLogits) {
  ASSERT_NO_FATAL_FAILURE(open(DType::f32));
  if (run_ == nullptr) return;
  run_->set_adapter(slot());
  const auto logits = run_->feed(golden_.ids, 2);
  ASSERT_TRUE(logits.ok()) << logits.status().message();
  EXPECT_LE(max_difference(*logits, std::span(golden_.logits).last(logits->size())), 2 * kTolerance);
}

TEST_P(GpuLoraGolden, SixteenBitTypesStayClose) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    ASSERT_NO_FATAL_FAILURE(open(dtype));
    if (run_ == nullptr) return;
    run_->set_adapter(slot());
    const auto logits = run_->feed(golden_.ids);
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    EXPECT_LT(relative_error(*logits, golden_.logits),
              std::string(GetParam()).find("moe") != std::string::npos ? 0.15 : 0.08);
    run_.reset();
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuLoraGolden, kAdapters);

TEST(GpuAdapters, SlotsAndMemoryAreGivenBack) {
  if (!gpu_arch()) GTEST_SKIP() << "no GPU";
  const Golden golden = read_golden("llama-all-r8");
  const auto bundle = open_model_bundle(golden.model, {.tokenizer_path = {}, .skip_tokenizer = true});
  const auto targets = lora_targets(bundle->config);
  const auto memory = GpuAdapters::create(*targets, {.max_rank = 16, .max_loaded = 1, .dtype = DType::bf16}).value();
  const LoraLimits limits = {.max_rank = 16, .modules = {}};
  // What is free on the GPU changes with other programs', so that one pass of several has to leave it as it was.
  constexpr int kPasses = 5, kLoads = 20;
  size_t free_before = 0, free_after = 0, total = 0;
  for (int pass = 0; pass < kPasses && (pass == 0 || free_before != free_after); ++pass) {
    for (int i = 0; i < kLoads; ++i) {
      const auto placer = memory->placer();
      const auto loaded = load_lora_adapter(adapter_folder("llama-all-r8"), {*targets, limits, DType::bf16}, *placer);
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      EXPECT_EQ((*loaded)->on_device->slot, 0);
      cudaMemGetInfo(i == 0 ? &free_before : &free_after, &total);
    }
  }
  EXPECT_EQ(free_before, free_after);
}

}  // namespace
}  // namespace warpweave
