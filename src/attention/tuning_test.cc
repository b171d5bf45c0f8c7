#include "attention/tuning.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/testing/temporary_folder.h"

namespace warpweave {
namespace {

constexpr TuningShape kShape = {32, 8, 128, KvFormat::bf16};

TuningTable table_for(const std::string& device) {
  TuningTable table(device, "2026-01-01");
  for (const auto phase : {AttentionPhase::prefill, AttentionPhase::decode}) {
    const bool prefill = phase == AttentionPhase::prefill;
    table.add({kShape, phase, 1, prefill ? 512 : 1, 4096, "intel_amx", prefill ? 900.0 : 100.0});
    table.add({kShape, phase, 16, prefill ? 512 : 1, 4096, "intel_amx", prefill ? 9000.0 : 1600.0});
    table.add({kShape, phase, 1, prefill ? 512 : 1, 4096, "torch_native", prefill ? 300.0 : 400.0});
    table.add({kShape, phase, 16, prefill ? 512 : 1, 4096, "torch_native", prefill ? 8000.0 : 6400.0});
    table.add({kShape, phase, 1, prefill ? 512 : 1, 4096, "half_measured", 1.0});
  }
  return table;
}

HardwareFacts cpu() { return named_hardware("cpu").value(); }

ModelFacts model() {
  ModelFacts facts;
  facts.num_q_heads = 32;
  facts.num_kv_heads = 8;
  facts.head_dim = 128;
  return facts;
}

bool has(const std::vector<std::string>& lines, const std::string& part) {
  for (const std::string& line : lines) {
    if (line.find(part) != std::string::npos) return true;
  }
  return false;
}

TEST(Tuning, RanksWhatWasMeasuredInEveryBucket) {
  std::string why_not;
  const auto ranked = table_for(cpu().name).ranking(cpu(), kShape, AttentionPhase::decode, why_not);
  ASSERT_EQ(ranked.size(), 2u) << "half_measured has one bucket only";
  EXPECT_EQ(ranked[0].backend, "intel_amx");
  EXPECT_EQ(ranked[1].backend, "torch_native");
  EXPECT_NE(ranked[0].measurements.find("b16 kv 4096 1.60 ms"), std::string::npos);
}

TEST(Tuning, KeepsTimesOfLatentForms) {
  const LatentFormShape shape = {16, 512, 128, 64, 128, KvFormat::fp8_ds_mla};
  TuningTable table(cpu().name, "2026-01-01");
  table.add({{16, 1, 576, KvFormat::fp8_ds_mla, 512}, AttentionPhase::decode, 1, 1, 4096, "fa3", 10});
  for (const int new_tokens : {64, 1024}) table.add(LatentFormPoint{shape, new_tokens, 0, 1.5 * new_tokens, 100});
  const Result<TuningTable> read = TuningTable::parse(table.to_json());
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->points()[0].shape.v_head_dim, 512);
  const LatentFormTimes times = read->latent_forms(cpu(), shape);
  ASSERT_FALSE(times.empty());
  EXPECT_NEAR(times.estimate(64, 0).absorbed_us, 96, 1e-6);
  EXPECT_NEAR(times.estimate(1024, 0).expanded_us, 100, 1e-6);
  EXPECT_TRUE(read->latent_forms(named_hardware("h200").value(), shape).empty()) << "another device";
  LatentFormShape other = shape;
  other.num_heads = 128;
  EXPECT_TRUE(read->latent_forms(cpu(), other).empty());
  std::string broken = table.to_json();
  broken.replace(broken.find("\"absorbed_us\": 96"), 17, "\"absorbed_us\": -1");
  EXPECT_EQ(TuningTable::parse(broken).status().code(), StatusCode::data_loss);
}

HardwareFacts h200() { return named_hardware("h200").value(); }

TEST(Tuning, TablesOfTheProgramAreReadAndDecideForAuto) {
  const TuningTable* const table = builtin_tuning(h200().name);
  ASSERT_NE(table, nullptr);
  EXPECT_GT(table->points().size(), 100u);
  EXPECT_EQ(builtin_tuning(cpu().name), nullptr);
  AttentionFlags flags;
  flags.attention_backend = "auto";
  const auto all = known_backends_as_built();
  const auto chosen = select_attention(h200(), model(), flags, all);
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  EXPECT_EQ(chosen->prefill, "fa3");
  EXPECT_TRUE(has(chosen->reasons, "decode: auto -> fa3, the fastest measured on NVIDIA H200"));
  EXPECT_TRUE(has(chosen->reasons, "as multiples of the best time"));
}

TEST(Tuning, WithoutAutoTheProgramsTableIsOnlyQuoted) {
  const auto all = known_backends_as_built();
  const auto chosen = select_attention(h200(), model(), {}, all);
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  EXPECT_TRUE(has(chosen->reasons, "first choice"));
  EXPECT_TRUE(has(chosen->reasons, "prefill: measured on NVIDIA H200"));
}

TEST(Tuning, EqualTimesLeaveTheOrderOfTheRules) {
  TuningTable table(h200().name, "2026-01-01");
  for (const auto& [backend, us] : {std::pair{"flashinfer", 100.0}, {"fa3", 102.0}, {"triton", 90.0}}) {
    table.add({kShape, AttentionPhase::decode, 1, 1, 4096, backend, us});
    table.add({kShape, AttentionPhase::prefill, 1, 512, 512, backend, backend[0] == 't' ? 300.0 : us});
  }
  AttentionFlags flags;
  flags.attention_backend = "auto";
  flags.tuning = &table;
  const auto all = known_backends_as_built();
  const auto chosen = select_attention(h200(), model(), flags, all);
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  EXPECT_EQ(chosen->prefill, "fa3") << "2 % behind flashinfer";
  EXPECT_EQ(chosen->decode, "triton");
}

TEST(Tuning, FileKeepsEverything) {
  const TuningTable table = table_for("a device");
  const TemporaryFolder folder;
  const std::string path = folder / "tuning.json";
  std::ofstream(path) << table.to_json();
  const auto read = TuningTable::read(path);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->to_json(), table.to_json());
}

TEST(Tuning, BadFilesAreNamed) {
  EXPECT_EQ(TuningTable::read("/nonexistent.json").status().field(), "--attention-tuning-file");
  for (const char* text : {"", "{}", "[1", R"({"version": 2, "device": "x", "date": "y"})",
                           R"({"version": 1, "device": "x", "date": "y", "measurements": [{}]})"}) {
    const auto table = TuningTable::parse(text);
    ASSERT_FALSE(table.ok()) << text;
    EXPECT_EQ(table.status().code(), StatusCode::data_loss);
  }
}

TEST(Tuning, AutoChoosesPerPhaseAndSaysWhy) {
  const TuningTable table = table_for(cpu().name);
  AttentionFlags flags;
  flags.attention_backend = "auto";
  flags.tuning = &table;
  const auto resolved = select_attention(cpu(), model(), flags);
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  EXPECT_EQ(resolved->prefill, "torch_native");
  EXPECT_EQ(resolved->decode, "intel_amx");
  EXPECT_TRUE(has(resolved->reasons, "prefill: auto -> torch_native, the fastest measured here"));
  EXPECT_TRUE(has(resolved->reasons, "b1 q 512 kv 4096 300 us"));
}

TEST(Tuning, WithoutMeasurementsTheRulesDecideAndSayWhy) {
  const TuningTable other = table_for("another device");
  AttentionFlags flags;
  flags.tuning = &other;
  auto resolved = select_attention(cpu(), model(), flags);
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(resolved->prefill, "intel_amx");
  EXPECT_TRUE(has(resolved->reasons, "another device"));
  const TuningTable same = table_for(cpu().name);
  flags.tuning = &same;
  ModelFacts wide = model();
  wide.num_q_heads = 64;
  resolved = select_attention(cpu(), wide, flags);
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(resolved->prefill, "intel_amx");
  EXPECT_TRUE(has(resolved->reasons, "no measurement of 64/8 heads"));
}

TEST(Tuning, RulesOutweighMeasurements) {
  const TuningTable table = table_for(cpu().name);
  AttentionFlags flags;
  flags.tuning = &table;
  flags.enable_deterministic_inference = true;  // both phases by one backend
  const auto resolved = select_attention(cpu(), model(), flags);
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  EXPECT_EQ(resolved->prefill, resolved->decode);
}

}  // namespace
}  // namespace warpweave
