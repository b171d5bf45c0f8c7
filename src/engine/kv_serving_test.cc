// Serving tale-llama with every --kv-cache-dtype: prefix cache, copy-on-write and retraction treat a
// quantised pool like any other; scales come from the checkpoint.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/testing/temporary_folder.h"
#include "engine/kv_self_check.h"
#include "engine/testing/asking.h"
#include "model/build_decoder.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = "models/tale-llama";

ServedModel serve(ServerArgs args, const std::string& path = kModel) {
  args.dtype = "float32";
  args.model_path = path;
  auto served = create_engine({.args = args, .model_path = path, .on_weights_progress = {}});
  EXPECT_TRUE(served.ok()) << served.status().message();
  return std::move(served).value();
}

// Distinct tokens of tale-llama, the same for equal `seed`.
Ids tale_ids(int count, int seed) {
  Ids ids(count);
  for (int i = 0; i < count; ++i) ids[i] = 100 + (i * 37 + seed * 1009) % 3900;
  return ids;
}

struct Setting {
  std::string dtype, backend;
};
void PrintTo(const Setting& s, std::ostream* out) { *out << s.dtype << " " << s.backend; }

// Every CPU backend of a format: auto's choice and the plain one.
std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const std::string dtype : {"f32", "bf16", "f16", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1"}) {
    for (const KnownBackend& backend : known_backends()) {
      if (!backend.built || !backend.caps->archs.has(cpu_hardware_facts().arch)) continue;
      if (!backend.caps->kinds.has(AttentionKind::mha)) continue;
      if (!backend.caps->kv_formats.has(*parse_kv_format(dtype))) continue;
      if (backend.caps->name == "torch_native" || backend.caps->name == "intel_amx") {
        all.push_back({dtype, std::string(backend.caps->name)});
      }
    }
  }
  return all;
}

class KvServing : public testing::TestWithParam<Setting> {
 protected:
  ServerArgs args() const {
    ServerArgs out;
    out.kv_cache_dtype = GetParam().dtype;
    out.attention_backend = GetParam().backend;
    out.page_size = 16;
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(All, KvServing, testing::ValuesIn(settings()), [](const auto& info) {
  return info.param.dtype + "_" + info.param.backend;
});

// The second request shares 40 tokens with the first: two pages by reference and half of a third,
// copied. What it reads back must be what an engine without a cache computes.
TEST_P(KvServing, CachedPrefixesAndCopiedTailsGiveTheSameAnswers) {
  Ids first = tale_ids(60, 1), second = tale_ids(60, 1);
  for (int i = 40; i < 60; ++i) second[i] += 7;
  ServedModel cached = serve(args());
  ServerArgs cold_args = args();
  cold_args.disable_radix_cache = true;
  ServedModel cold = serve(cold_args);
  EXPECT_EQ(cached.engine->info().kv_cache_dtype, GetParam().dtype);
  EXPECT_EQ(ask(cached, {first}, 12)[0].ids, ask(cold, {first}, 12)[0].ids);
  const Answer warm = ask(cached, {second}, 12)[0];
  EXPECT_EQ(warm.cached_tokens, 40);
  EXPECT_EQ(warm.ids, ask(cold, {second}, 12)[0].ids);
  const Answer again = ask(cached, {first}, 12)[0];
  EXPECT_EQ(again.cached_tokens, 59);
  EXPECT_EQ(again.ids, ask(cold, {first}, 12)[0].ids);
}

TEST_P(KvServing, ATinyPoolRetractsAndStillAnswersEverybody) {
  ServerArgs tight_args = args();
  tight_args.page_size = 4;
  tight_args.max_total_tokens = 96;
  ServedModel tight = serve(tight_args), roomy = serve(args());
  std::vector<Ids> prompts;
  for (int i = 0; i < 6; ++i) prompts.push_back(tale_ids(5, i));
  const std::vector<Answer> got = ask(tight, prompts, 40), want = ask(roomy, prompts, 40);
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(got[i].ids, want[i].ids) << i;
}

// tale-llama with one more shard, which gives every layer the same scales.
class ScaledCheckpoint {
 public:
  ScaledCheckpoint(float k_scale, float v_scale) {
    fs::copy(kModel, folder_);
    std::string header = "{", data;
    const auto add = [&](const std::string& name, float scale) {
      const size_t at = data.size();
      data.append(reinterpret_cast<const char*>(&scale), sizeof scale);
      header += (at ? "," : "") + ("\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[") +
                std::to_string(at) + "," + std::to_string(data.size()) + "]}";
    };
    for (int layer = 0; layer < 4; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
      add(prefix + "k_scale", k_scale);
      add(prefix + "v_scale", v_scale);
    }
    header += "}";
    const uint64_t size = header.size();
    std::ofstream(folder_ / "scales.safetensors", std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&size), sizeof size) << header << data;
    std::ofstream(folder_ / "model.safetensors.index.json")
        << R"({"weight_map": {"a": "model.safetensors", "b": "scales.safetensors"}})";
  }
  std::string path() const { return folder_; }

 private:
  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_ / "model";
};

TEST(KvScalesServing, ComeFromTheCheckpoint) {
  ServerArgs args;
  args.kv_cache_dtype = "fp8_e4m3";
  args.attention_backend = "torch_native";
  const std::vector<Ids> prompts = {tale_ids(30, 3)};
  ServedModel plain = serve(args);
  const Ids want = ask(plain, prompts, 16)[0].ids;
  {
    // A power of two moves all codes by whole exponents, which changes no value.
    const ScaledCheckpoint checkpoint(0.25f, 0.125f);
    ServedModel scaled = serve(args, checkpoint.path());
    EXPECT_EQ(ask(scaled, prompts, 16)[0].ids, want);
  }
  // 448 * 1e-4: everything saturates.
  const ScaledCheckpoint checkpoint(1e-4f, 1e-4f);
  ServedModel saturated = serve(args, checkpoint.path());
  EXPECT_NE(ask(saturated, prompts, 16)[0].ids, want);
}

TEST(KvSelfCheck, MeasuresTheModelAndNamesTheFlag) {
  auto bundle = open_model_bundle(kModel, {});
  ASSERT_TRUE(bundle.ok());
  ThreadTeam team(2);
  auto model = build_decoder(bundle->config, bundle->weights,
                             {.dtype = DType::f32, .max_positions = 64, .progress = {}}, team);
  ASSERT_TRUE(model.ok());
  for (const KvFormat format : {KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::fp4_e2m1}) {
    const auto check = check_kv_format(**model, format, 64, team);
    ASSERT_TRUE(check.ok()) << check.status().message();
    EXPECT_TRUE(check->fits) << kv_self_check_text(*check, format);
    EXPECT_EQ(check->tokens, 48);
    for (const KvRounding& side : {check->k, check->v}) {
      EXPECT_GT(side.largest, 0.1f);
      EXPECT_LT(side.largest, 100.0f);
      EXPECT_GT(side.relative_error, 0.005);
    }
    const std::string text = kv_self_check_text(*check, format);
    EXPECT_NE(text.find("--kv-cache-dtype"), std::string::npos);
    EXPECT_EQ(text.find("more than it should"), std::string::npos) << text;
  }
  KvSelfCheck bad;
  bad.fits = false;
  EXPECT_NE(kv_self_check_text(bad, KvFormat::fp8_e4m3).find("use --kv-cache-dtype bf16"),
            std::string::npos);
}

}  // namespace
}  // namespace warpweave
