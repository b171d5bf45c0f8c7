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
HardwareFacts h200() { return named_hardware("h200").value(); }

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

// 64 and 1024 new tokens, alone and four at once, absorbed in `us` a token.
LatentFormSet latent_set(int heads, KvFormat format, double us) {
  LatentFormSet set = {.shape = {heads, 512, 128, 64, 128, format}, .date = "2026-02-03", .points = {}};
  for (const int requests : {1, 4})
    for (const int new_tokens : {64, 1024}) set.points.push_back({requests, new_tokens, 0, us * new_tokens, us * 100});
  return set;
}

TEST(Tuning, KeepsTimesOfLatentForms) {
  const LatentFormSet set = latent_set(16, KvFormat::fp8_ds_mla, 1.5);
  TuningTable table(cpu().name, "2026-01-01");
  table.add({{16, 1, 576, KvFormat::fp8_ds_mla, 512}, AttentionPhase::decode, 1, 1, 4096, "fa3", 10});
  table.add(set);
  const Result<TuningTable> read = TuningTable::parse(table.to_json());
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->points()[0].shape.v_head_dim, 512);
  const TuningTable::LatentForms forms = read->latent_forms(cpu(), set.shape);
  ASSERT_FALSE(forms.times.empty());
  EXPECT_EQ(forms.measurements, "on " + cpu().name + ", 2026-02-03, 16 heads, fp8_ds_mla KV");
  EXPECT_NEAR(forms.times.estimate(1, 64, 0).absorbed_us, 96, 1e-6);
  EXPECT_NEAR(forms.times.estimate(4, 1024, 0).expanded_us, 150, 1e-6);
  EXPECT_TRUE(read->latent_forms(h200(), set.shape).times.empty()) << "another device";
  LatentFormShape other = set.shape;
  other.kv_format = KvFormat::bf16;
  EXPECT_TRUE(read->latent_forms(cpu(), other).times.empty());
}

TEST(Tuning, TakesOtherHeadsFromThoseMeasured) {
  TuningTable table(cpu().name, "2026-01-01");
  table.add(latent_set(64, KvFormat::bf16, 7));
  table.add(latent_set(16, KvFormat::bf16, 1));
  LatentFormShape shape = {16, 512, 128, 64, 128, KvFormat::f16};
  const auto forms_of = [&](int heads) {
    shape.num_heads = heads;
    return table.latent_forms(cpu(), shape);
  };
  const auto times_of = [&](int heads) { return forms_of(heads).times.estimate(1, 64, 0); };
  EXPECT_NEAR(times_of(16).absorbed_us, 64, 1e-6);
  EXPECT_NEAR(times_of(40).expanded_us, 4 * 100, 1e-6) << "half of the way";
  EXPECT_NEAR(times_of(32).absorbed_us, 3 * 64, 1e-6) << "a third of the way";
  EXPECT_NEAR(times_of(48).absorbed_us, 7 * 64, 1e-6) << "two tokens in a tile of 128 rows, as of 64 heads";
  EXPECT_NEAR(times_of(4).absorbed_us, 64, 1e-6) << "as with the fewest";
  EXPECT_NEAR(times_of(128).absorbed_us, 14 * 64, 1e-6) << "twice the most";
  EXPECT_EQ(forms_of(40).measurements, "on " + cpu().name + ", 2026-02-03, 16 and 64 heads, bf16 KV");
  EXPECT_EQ(forms_of(64).measurements, "on " + cpu().name + ", 2026-02-03, 64 heads, bf16 KV");
}

TEST(Tuning, BadTimesOfLatentFormsAreNamed) {
  const std::string begin = R"({"version": 1, "device": "x", "date": "y", "measurements": [], "latent_forms": [{)"
                            R"("num_heads": 16, "kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "v_dim": 128, )"
                            R"("kv_format": "bf16", "date": "y", "points": [)";
  const auto message = [&](const std::string& points) {
    const Result<TuningTable> table = TuningTable::parse(begin + points + "]}]}");
    return table.ok() ? std::string() : table.status().message();
  };
  EXPECT_EQ(message("[1, 64, 0, 5, 6], [4, 64, 0, 5, 6]"), "");
  for (const auto& [points, wanted] : {std::pair{"[1, 64, 0, 5, 6]", "crowds of requests"},
                                       {"[4, 64, 0, 5, 6], [8, 64, 0, 5, 6]", "need one request"},
                                       {"[1, 64, 0, 5, 6], [4, 32, 0, 5, 6]", "of every number of new tokens"},
                                       {"[1, 64, 0, 5, 6], [4, 64, 0, -5, 6]", "must be above 0"},
                                       {"[1, 64, 0, 0, 6], [4, 64, 0, 5, 6]", "must be above 0"},
                                       {"[0, 64, 0, 5, 6], [4, 64, 0, 5, 6]", "requests and new tokens"},
                                       {"[1, 64, -1, 5, 6], [4, 64, 0, 5, 6]", "prefixes at least 0"},
                                       {"[1, 64, 0, 5], [4, 64, 0, 5, 6]", "five numbers"},
                                       {"7", "five numbers"},
                                       {R"([1, 64, 0, "a", 6])", "not a tuning file"},
                                       {"", "crowds of requests"}}) {
    EXPECT_NE(message(points).find(wanted), std::string::npos) << points << ": " << message(points);
  }
}

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
