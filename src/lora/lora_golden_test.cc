// Adapters against what PEFT computes with them (tests/golden/lora, made by tools/make_lora_goldens.py), against
// weights that they are merged into, and rows of several adapters in one batch against each alone.
#include <gtest/gtest.h>

#include <map>

#include "base/mapped_file.h"
#include "lora/adapter_config.h"
#include "lora/load_adapter.h"
#include "lora/testing/golden_testing.h"
#include "model/build_decoder.h"
#include "model/testing/max_difference.h"
#include "model/testing/paged_run.h"
#include "ops/elementwise.h"

namespace warpweave {
namespace {

using namespace lora_golden;

std::unique_ptr<PagedRun> open_model(const std::string& path, DType dtype = DType::f32) {
  auto run = PagedRun::open(path, {.dtype = dtype});
  EXPECT_TRUE(run.ok()) << run.status().message();
  return run.ok() ? std::move(run).value() : nullptr;
}

std::unique_ptr<LoraAdapter> load(const std::string& name, const ModelConfig& config, uint64_t id = 1,
                                  DType dtype = DType::f32) {
  auto targets = lora_targets(config);
  EXPECT_TRUE(targets.ok()) << targets.status().message();
  auto adapter = load_lora_adapter(adapter_folder(name), *targets, {.max_rank = 16, .modules = {}}, dtype);
  EXPECT_TRUE(adapter.ok()) << adapter.status().message();
  if (!adapter.ok()) return nullptr;
  (*adapter)->id = id;
  return std::move(adapter).value();
}

// A model's weights with an adapter's scale * B A added to them.
class MergedWeights : public WeightSource {
 public:
  MergedWeights(std::shared_ptr<WeightSource> inner, const std::string& folder) : inner_(std::move(inner)) {
    config_ = *parse_adapter_config(*read_text_file(folder + "/adapter_config.json"));
    file_ = MappedFile::open(folder + "/adapter_model.safetensors").value();
    const std::vector<NamedTensor> tensors = parse_safetensors(file_.text(), "adapter").value();
    for (const NamedTensor& tensor : tensors) {
      matrices_.emplace(tensor.name.substr(std::string("base_model.model.").size()), tensor.view);
    }
  }
  bool has(std::string_view name) const override { return inner_->has(name); }
  DType dtype(std::string_view name) const override {
    return matrices_.contains(a_of(name)) ? DType::f32 : inner_->dtype(name);
  }
  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    WW_ASSIGN_OR_RETURN(TensorView view, inner_->find(name, shape));
    if (!matrices_.contains(a_of(name))) return view;
    std::vector<float>& sum = merged_[std::string(name)];
    sum.resize(view.elements());
    dequantize_row(view.dtype, view.data, view.elements(), sum.data());
    const std::string module(name.substr(0, name.size() - std::string(".weight").size()));
    const TensorView &a = matrices_.at(a_of(name)), &b = matrices_.at(module + ".lora_B.weight");
    const int64_t rank = a.shape[0], cols = a.shape[1];
    for (int64_t i = 0; i < b.shape[0]; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        double product = 0;
        for (int64_t k = 0; k < rank; ++k) {
          product +=
              double{static_cast<const float*>(b.data)[i * rank + k]} * static_cast<const float*>(a.data)[k * cols + j];
        }
        sum[i * cols + j] += static_cast<float>(product * config_.scale_of(module));
      }
    }
    view.data = sum.data();
    view.dtype = DType::f32;
    return view;
  }

 private:
  static std::string a_of(std::string_view name) {
    if (!name.ends_with(".weight")) return "";
    return std::string(name.substr(0, name.size() - std::string(".weight").size())) + ".lora_A.weight";
  }

  std::shared_ptr<WeightSource> inner_;
  LoraConfig config_;
  MappedFile file_;
  std::map<std::string, TensorView> matrices_;
  mutable std::map<std::string, std::vector<float>> merged_;
};

class LoraGolden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { open(DType::f32); }
  void open(DType dtype) {
    golden_ = read_golden(GetParam());
    run_ = open_model(golden_.model, dtype);
    ASSERT_NE(run_, nullptr);
    adapter_ = load(GetParam(), run_->config(), 1, dtype);
    ASSERT_NE(adapter_, nullptr);
  }

  Golden golden_;
  std::unique_ptr<PagedRun> run_;
  std::unique_ptr<LoraAdapter> adapter_;
};

TEST_P(LoraGolden, WholePrefillGivesPeftsLogits) {
  const auto plain = run_->feed(golden_.ids);
  ASSERT_TRUE(plain.ok());
  EXPECT_GT(max_difference(*plain, golden_.logits), 0.1f);  // the adapter matters
  run_->restart();
  run_->set_adapter(adapter_.get());
  const auto logits = run_->feed(golden_.ids);
  ASSERT_TRUE(logits.ok()) << logits.status().message();
  EXPECT_LE(max_difference(*logits, golden_.logits), kTolerance);
  run_->restart();
  run_->set_adapter(nullptr);
  EXPECT_EQ(*run_->feed(golden_.ids), *plain);  // nothing of it stays
}

TEST_P(LoraGolden, ChunksAndDecodeStepsGiveTheSameLogits) {
  run_->set_adapter(adapter_.get());
  const std::span<const int32_t> ids(golden_.ids);
  std::vector<float> all;
  for (size_t done = 0; done < ids.size();) {
    const size_t count = std::min<size_t>(done < 14 ? 7 : 1, ids.size() - done);
    const auto logits = run_->feed(ids.subspan(done, count));
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    all.insert(all.end(), logits->begin(), logits->end());
    done += count;
  }
  EXPECT_LE(max_difference(all, golden_.logits), kTolerance);
}

TEST_P(LoraGolden, OnlyTheWantedRowsGiveTheSameLogits) {
  run_->set_adapter(adapter_.get());
  const auto logits = run_->feed(golden_.ids, 2);
  ASSERT_TRUE(logits.ok()) << logits.status().message();
  EXPECT_LE(max_difference(*logits, std::span(golden_.logits).last(logits->size())), kTolerance);
}

TEST_P(LoraGolden, IsWhatMergedWeightsGive) {
  run_->set_adapter(adapter_.get());
  const auto logits = run_->feed(golden_.ids);
  ASSERT_TRUE(logits.ok());
  const auto merged = std::make_shared<MergedWeights>(run_->bundle().weights, adapter_folder(GetParam()));
  ASSERT_TRUE(run_->replace_weights(merged).ok());
  run_->restart();
  run_->set_adapter(nullptr);
  const auto expected = run_->feed(golden_.ids);
  ASSERT_TRUE(expected.ok()) << expected.status().message();
  EXPECT_LE(max_difference(*logits, *expected), kTolerance);
}

TEST_P(LoraGolden, RunsIn16Bits) {
  ASSERT_NO_FATAL_FAILURE(open(DType::bf16));
  run_->set_adapter(adapter_.get());
  const auto logits = run_->feed(golden_.ids);
  ASSERT_TRUE(logits.ok());
  EXPECT_LE(max_difference(*logits, golden_.logits), 0.8f);
}

INSTANTIATE_TEST_SUITE_P(All, LoraGolden, kAdapters);

// Requests side by side, each with its adapter and its own pages.
struct Sequence {
  std::vector<int32_t> ids;
  const LoraAdapter* adapter;
};

// The logits of the last two rows of each sequence: [sequences, 2, vocab].
std::vector<float> run_together(PagedRun& run, std::span<const Sequence> sequences) {
  constexpr int kPageSize = 4, kPagesEach = 8;
  std::vector<int32_t> input_ids, positions, kv_slots, q_indptr = {0}, kv_lens, logits_rows, page_table;
  std::vector<const LoraAdapter*> adapters;
  ForwardBatch batch;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const std::vector<int32_t>& ids = sequences[s].ids;
    for (size_t i = 0; i < ids.size(); ++i) {
      input_ids.push_back(ids[i]);
      positions.push_back(static_cast<int32_t>(i));
      kv_slots.push_back(static_cast<int32_t>((s * kPagesEach + i / kPageSize) * kPageSize + i % kPageSize));
    }
    for (int p = 0; p < kPagesEach; ++p) page_table.push_back(static_cast<int32_t>(s * kPagesEach) + p);
    q_indptr.push_back(static_cast<int32_t>(input_ids.size()));
    kv_lens.push_back(static_cast<int32_t>(ids.size()));
    logits_rows.push_back(q_indptr.back() - 2);
    logits_rows.push_back(q_indptr.back() - 1);
    adapters.push_back(sequences[s].adapter);
    batch.max_q_len = std::max(batch.max_q_len, kv_lens.back());
  }
  batch.mode = ForwardMode::extend;
  batch.num_reqs = static_cast<int>(sequences.size());
  batch.num_tokens = q_indptr.back();
  batch.max_kv_len = batch.max_q_len;
  batch.page_size = kPageSize;
  batch.input_ids = input_ids;
  batch.positions = positions;
  batch.kv_slots = kv_slots;
  batch.q_indptr = q_indptr;
  batch.kv_lens = kv_lens;
  batch.page_table = page_table;
  batch.page_table_stride = kPagesEach;
  batch.adapters = adapters;
  batch.logits_rows = logits_rows;
  std::vector<float> logits(logits_rows.size() * run.vocab_size());
  EXPECT_TRUE(run.attention().init_forward_metadata(batch).ok());
  EXPECT_TRUE(run.model().forward(batch, run.cache(), run.attention(), run.team()).ok());
  run.model().logits(0, static_cast<int64_t>(logits_rows.size()), {.values = logits.data()}, run.team());
  return logits;
}

TEST(LoraBatch, RowsOfSeveralAdaptersGiveTheBitsOfEachAlone) {
  const Golden golden = read_golden("llama-all-r8");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto run = open_model(golden.model, dtype);
    ASSERT_NE(run, nullptr);
    const auto all = load("llama-all-r8", run->config(), 1, dtype);
    const auto some = load("llama-patterns-r16", run->config(), 2, dtype);
    ASSERT_TRUE(all != nullptr && some != nullptr);
    const auto part = [&](int begin, int count) {
      return std::vector<int32_t>(golden.ids.begin() + begin, golden.ids.begin() + begin + count);
    };
    const Sequence sequences[] = {
        {part(0, 9), all.get()}, {part(3, 5), nullptr}, {part(0, 9), some.get()}, {part(7, 12), all.get()}};
    const std::vector<float> together = run_together(*run, sequences);
    const size_t each = 2 * run->vocab_size();
    for (size_t s = 0; s < std::size(sequences); ++s) {
      const std::vector<float> alone = run_together(*run, std::span(sequences).subspan(s, 1));
      EXPECT_EQ(std::vector(together.begin() + s * each, together.begin() + (s + 1) * each), alone) << "sequence " << s;
    }
    EXPECT_GT(max_difference(std::span(together).first(each), std::span(together).subspan(2 * each, each)), 0.1f);
  }
}

}  // namespace
}  // namespace warpweave
