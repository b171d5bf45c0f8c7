#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "attention/tuning.h"
#include "base/testing/temporary_folder.h"
#include "cli/bench_speculation.h"
#include "cli/chat_settings.h"
#include "cli/commands.h"
#include "cli/embedded_model.h"
#include "cli/load_model.h"
#include "cli/model_search.h"
#include "server/api/api.h"
#include "server/testing/fake_engine.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;
using Argv = std::vector<std::string>;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(EmbeddedModel, HoldsTheFilesOfTheModelFolder) {
  ASSERT_EQ(embedded_model().size(), 5u);
  for (const EmbeddedFile& file : embedded_model()) {
    EXPECT_EQ(file.bytes, read_file(fs::path("models/tale-llama") / file.name)) << file.name;
  }
}

TEST(EmbeddedModel, ExtractedFilesGoAwayWithTheirOwner) {
  std::string folder;
  {
    Result<ModelSource> source = extract_embedded_model();
    ASSERT_TRUE(source.ok()) << source.status().message();
    folder = source->path();
    EXPECT_TRUE(source->embedded());
    EXPECT_EQ(read_file(fs::path(folder) / "config.json"),
              read_file("models/tale-llama/config.json"));
    const fs::perms rights = fs::status(fs::path(folder).parent_path()).permissions();
    EXPECT_EQ(rights & fs::perms::others_all, fs::perms::none);
  }
  EXPECT_FALSE(fs::exists(folder));
}

TEST(FindModel, TakesPathsThenNamesInTheModelFolders) {
  TemporaryFolder models;
  fs::create_directory(models.path() / "my-model");
  std::ofstream(models.path() / "my-model" / "config.json") << "{}";
  setenv("WARPWEAVE_MODELS", models.path().c_str(), 1);
  const std::string expected = (models.path() / "my-model").string();
  for (const std::string& name : {expected, std::string("my-model")}) {
    Result<ModelSource> found = find_model(name);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found->path(), expected);
  }
  const Result<ModelSource> missing = find_model("meta-llama/Llama-9");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::not_found);
  EXPECT_EQ(missing.status().field(), "--model-path");
  EXPECT_NE(missing.status().message().find(expected), std::string::npos);
  unsetenv("WARPWEAVE_MODELS");
  Result<ModelSource> standard = find_model("");
  ASSERT_TRUE(standard.ok());
  EXPECT_TRUE(standard->path().ends_with("models/tale-llama")) << standard->path();
}

// A template in another encoding would be blamed on the messages of every request.
TEST(LoadModel, RefusesTemplatesThatAreNotUtf8) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "chat.jinja";
  std::ofstream(file, std::ios::binary) << "{{ messages[0].content }}\xff\xfe";
  ServerArgs args;
  args.model_path = "models/tale-llama";
  args.chat_template = file.string();
  const auto loaded = load_model(args);
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.status().message().find("not UTF-8 at byte 25"), std::string::npos) << loaded.status().message();
}

// A new route is closed until it is named here: who may call it is decided twice.
TEST(Routes, OnlyTheseAreOpenOrForAdmins) {
  server::testing::FakeEngine engine;
  const ServerArgs args;
  server::Router router;
  server::register_api(router, {.engine = engine, .args = args});
  std::set<std::string> open, admin;
  for (const server::Route& route : router.routes()) {
    const std::string name = route.method + " " + route.path;
    if (name.starts_with("GET /ui/")) {  // the chat page's files: the same for everybody
      EXPECT_EQ(route.auth, server::AuthLevel::open);
      continue;
    }
    if (route.auth == server::AuthLevel::open) open.insert(name);
    if (route.auth == server::AuthLevel::admin) admin.insert(name);
  }
  EXPECT_EQ(open, (std::set<std::string>{"GET /", "GET /health", "GET /ping", "GET /ready"}));
  EXPECT_EQ(admin, (std::set<std::string>{"GET /debug/audit", "POST /flush_cache", "POST /abort_request",
                                          "POST /start_profile", "POST /stop_profile", "POST /load_lora_adapter",
                                          "POST /unload_lora_adapter", "POST /v1/load_lora_adapter",
                                          "POST /v1/unload_lora_adapter", "POST /update_weight_version"}));
  EXPECT_GT(router.routes().size(), open.size() + admin.size() + 10);
}

TEST(Commands, ExitCodes) {
  EXPECT_EQ(serve_command(Argv{"--help"}), 0);
  EXPECT_EQ(serve_command(Argv{"--no-such-flag"}), kExitUsage);
  EXPECT_EQ(serve_command(Argv{"--model-path", "/nonexistent"}), kExitFailed);
  EXPECT_EQ(docs_command(Argv{"flags"}), 0);
  EXPECT_EQ(docs_command(Argv{"nonsense"}), kExitUsage);
  EXPECT_EQ(docs_command(Argv{"--help"}), 0);
  EXPECT_EQ(doctor_command(Argv{}), 0);
  EXPECT_EQ(doctor_command(Argv{"--help"}), 0);
  EXPECT_EQ(doctor_command(Argv{"flags"}), kExitUsage);
  EXPECT_EQ(backends_command(Argv{}), 0);
}

// What serve would refuse of the flex_attention flags, explain does, with the column.
TEST(Explain, ChecksTheModifiersOfFlexAttention) {
  const auto refused = [](const std::string& flag, const std::string& text, const char* backend) {
    testing::internal::CaptureStdout();
    EXPECT_EQ(explain_command(Argv{"--device", "cpu", "--attention-backend", backend, flag, text, "--json"}),
              kExitRefused);
    const auto error = nlohmann::json::parse(testing::internal::GetCapturedStdout())["error"];
    EXPECT_EQ(error["flag"], flag);
    return error["message"].get<std::string>();
  };
  const auto has = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has(refused("--flex-attention-mask-mod", "causal &&", "flex_attention"), "column 10");
  has(refused("--flex-attention-score-mod", "score +* 2", "flex_attention"), "column 8");
  has(refused("--flex-attention-params", "slope", "flex_attention"), "expected '='");
  has(refused("--flex-attention-mask-mod", "prefix_lm(4)", "flex_attention"), "later tokens");
  has(refused("--flex-attention-score-mod", "score", "intel_amx"), "is for flex_attention");
  EXPECT_EQ(explain_command(Argv{"--device", "cpu", "--attention-backend", "flex_attention",
                                 "--flex-attention-mask-mod", "window(64)"}), 0);
}

TEST(Conformance, ExitCodes) {
  EXPECT_EQ(conformance_command(Argv{"--case", "page_16", "--backend", "torch_native"}), 0);
  EXPECT_EQ(conformance_command(Argv{"--case", "mla_heads_1", "--backend", "torch_native", "--kind", "mla"}), 0);
  EXPECT_EQ(conformance_command(Argv{"--list"}), 0);
  EXPECT_EQ(conformance_command(Argv{"--help"}), 0);
  EXPECT_EQ(conformance_command(Argv{"--case", "no_such_case"}), kExitUsage);
  EXPECT_EQ(conformance_command(Argv{"--backend", "no_such_backend"}), kExitUsage);
  EXPECT_EQ(conformance_command(Argv{"--device", "abacus"}), kExitUsage);
  EXPECT_EQ(conformance_command(Argv{"--case", "GDN/decode/batch", "--kind", "linear"}), 0);
  EXPECT_EQ(conformance_command(Argv{"--case", "KDA/target_verify/tree", "--backend", "cpu", "--device", "cpu"}), 0);
  EXPECT_EQ(conformance_command(Argv{"--case", "page_16", "--kind", "linear"}), kExitUsage);
  EXPECT_EQ(conformance_command(Argv{"--case", "GDN/decode/batch", "--backend", "torch_native"}), kExitUsage);
  EXPECT_EQ(conformance_command(Argv{"--kind", "sparse"}), kExitUsage);
  EXPECT_EQ(conformance_command(Argv{"--plugin", "/nonexistent.so"}), kExitUsage);
  EXPECT_EQ(backends_command(Argv{"--matrix"}), 0);
  EXPECT_EQ(docs_command(Argv{"matrix"}), 0);
}

TEST(Tune, WritesWhatAutoDecidesBy) {
  TemporaryFolder folder;
  const std::string file = (folder.path() / "tuning.json").string();
  EXPECT_EQ(tune_command(Argv{"--output", file, "--batch-size", "1", "--kv-len", "32", "--q-len", "16",
                              "--seconds", "0", "--backend", "torch_native"}), 0);
  testing::internal::CaptureStdout();
  EXPECT_EQ(explain_command(Argv{"--device", "cpu", "--attention-backend", "auto",
                                 "--attention-tuning-file", file}), 0);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("decode: auto -> torch_native, the fastest measured here (b1 kv 32"),
            std::string::npos) << text;
  testing::internal::CaptureStderr();
  EXPECT_EQ(tune_command(Argv{"--backend", "no_such_backend"}), kExitFailed);
  const std::string error = testing::internal::GetCapturedStderr();
  EXPECT_NE(error.find("no_such_backend"), std::string::npos) << error;
  EXPECT_EQ(tune_command(Argv{"--batch-size", "0"}), kExitUsage);
}

TEST(Bench, PrintsARowPerBackendAndShape) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(bench_command(Argv{"attention", "--batch-size", "2", "--kv-len", "64", "--q-len", "32",
                               "--seconds", "0", "--backend", "torch_native", "--kv-cache-dtype", "fp8_e4m3"}),
            0);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("prefill b1 q 32 kv 32"), std::string::npos) << text;
  EXPECT_NE(text.find("decode b2 kv 64"), std::string::npos) << text;
  EXPECT_EQ(bench_command(Argv{}), kExitUsage);
  EXPECT_EQ(bench_command(Argv{"attention", "--q-heads", "3", "--kv-heads", "2"}), kExitUsage);
}

TEST(Bench, TimesSpeculationAndSuggestsFlags) {
  TemporaryFolder folder;
  const std::string json = (folder.path() / "spec.json").string();
  testing::internal::CaptureStdout();
  EXPECT_EQ(bench_command(Argv{"spec",
                               "--model-path",
                               "models/tale-llama",
                               "--prompts",
                               "README.md",
                               "--device",
                               "cpu",
                               "--threads",
                               "1",
                               "--num-prompts",
                               "1",
                               "--prompt-tokens",
                               "16",
                               "--max-tokens",
                               "8",
                               "--rounds",
                               "1",
                               "--batch-size",
                               "1,2",
                               "--draft-model-path",
                               "models/tale-eagle",
                               "--json",
                               json}),
            0);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("suggested for batch 2: "), std::string::npos) << text;
  EXPECT_NE(text.find("--speculative-algorithm EAGLE --speculative-draft-model-path models/tale-eagle"),
            std::string::npos);
  const auto rows = nlohmann::json::parse(std::ifstream(json))["rows"];
  ASSERT_EQ(rows.size(), 2u * (2 + 2 + 6));  // two servers without guesses, the second of them the control
  size_t controls = 0;
  for (const auto& row : rows) {
    controls += row.value("control", false);
    EXPECT_TRUE(!row.value("control", false) || row["flags"] == "") << row;
    const bool drafts = row["flags"].get<std::string>().find("EAGLE") != std::string::npos;
    EXPECT_EQ(row["draft_ms"].get<double>() > 0, drafts) << row;
    EXPECT_GT(row["verify_ms"].get<double>(), 0) << row;
    EXPECT_GE(row["accept_length"].get<double>(), 1) << row;
  }
  EXPECT_EQ(controls, 2u);
  EXPECT_EQ(bench_command(Argv{"spec"}), kExitUsage);
  EXPECT_EQ(bench_command(Argv{"spec", "--prompts", "no/such/file"}), kExitFailed);
  EXPECT_EQ(bench_command(Argv{"spec", "--prompts", "README.md", "--candidate", "--speculative-algorithm EAGLE"}),
            kExitFailed);
}

TEST(Bench, ProposesNextnWhereTheCheckpointHasItsLayers) {
  const auto proposed = [](const std::string& model) {
    const std::vector<std::string> flags = speculation_candidates({}, model);
    return std::ranges::count_if(flags, [](const std::string& one) { return one.find(" NEXTN ") != std::string::npos; });
  };
  const std::string drafts = "tests/golden/drafts/";
  EXPECT_EQ(proposed(drafts + "nextn-deepseek-v3"), 3);
  EXPECT_EQ(proposed(drafts + "gguf-nextn-deepseek-v3/model.gguf"), 3);
  EXPECT_EQ(proposed(drafts + "nextn-qwen3-next"), 3);  // whose config.json does not mention them
  EXPECT_EQ(proposed(drafts + "gguf-nextn-qwen3_5/model.gguf"), 3);
  EXPECT_EQ(proposed("models/tale-llama"), 0);
  EXPECT_EQ(proposed("no/such/model"), 0);

  TemporaryFolder folder;  // the configuration alone says that there are some
  fs::copy(drafts + "nextn-deepseek-v3/config.json", folder.path() / "config.json");
  fs::copy("models/tale-llama/model.safetensors", folder.path() / "model.safetensors");
  EXPECT_EQ(proposed(folder.path().string()), 0);
}

TEST(ChatSettings, FlagsThenTheModelThenWhatSuitsSmallModels) {
  ServerArgs args;
  GenerationDefaults generation;
  EXPECT_FLOAT_EQ(chat_settings(args, generation).sampling.temperature, 0.7f);
  EXPECT_FLOAT_EQ(chat_settings(args, generation).sampling.top_p, 0.9f);
  generation.temperature = 0.3;
  generation.top_k = 20;
  EXPECT_FLOAT_EQ(chat_settings(args, generation).sampling.temperature, 0.3f);
  EXPECT_EQ(chat_settings(args, generation).sampling.top_k, 20);
  args.temperature = 0;
  args.max_tokens = 5;
  EXPECT_FLOAT_EQ(chat_settings(args, generation).sampling.temperature, 0.0f);
  EXPECT_EQ(chat_settings(args, generation).max_tokens, 5);
  args = {};
  args.sampling_defaults = "openai";
  EXPECT_FLOAT_EQ(chat_settings(args, generation).sampling.temperature, 1.0f);
}

TEST(ChatSettings, SetChecksNamesAndBounds) {
  ChatSettings settings;
  EXPECT_TRUE(set_chat_setting("temperature", "0.25", &settings).ok());
  EXPECT_FLOAT_EQ(settings.sampling.temperature, 0.25f);
  EXPECT_TRUE(set_chat_setting("seed", "7", &settings).ok());
  EXPECT_EQ(settings.sampling.seed, 7u);
  EXPECT_TRUE(set_chat_setting("seed", "default", &settings).ok());
  EXPECT_FALSE(settings.sampling.seed.has_value());
  EXPECT_TRUE(set_chat_setting("top_k", "0", &settings).ok());
  EXPECT_EQ(settings.sampling.top_k, -1);
  EXPECT_TRUE(set_chat_setting("system_prompt", "Be brief.", &settings).ok());
  EXPECT_EQ(settings.system_prompt, "Be brief.");
  EXPECT_NE(chat_settings_text(settings).find("temperature         0.25\n"), std::string::npos);

  const struct { const char *name, *value, *wanted; } wrong[] = {
      {"temprature", "1", "did you mean temperature?"}, {"temperature", "-1", "0 to 100, not '-1'"},
      {"temperature", "nan", "not 'nan'"},              {"temperature", "warm", "not 'warm'"},
      {"top_k", "1.5", "whole number"},                 {"max_tokens", "0", "1 or more"},
      {"seed", "1e300", "whole number"},                {"xyzzyplugh", "1", "there are system_prompt, temperature"}};
  for (const auto& each : wrong) {
    const Status status = set_chat_setting(each.name, each.value, &settings);
    EXPECT_NE(status.message().find(each.wanted), std::string::npos) << status.message();
  }
}

// On a CPU fp4_e2m1 means fp4_mla for latent attention, which is what `auto` then looks for in the table.
TEST(Tune, NamesTheFormatThatIsServed) {
  const TemporaryFolder folder;
  const std::string output = (folder.path() / "tuning.json").string();
  const Argv argv = {"--model-path",     "deepseek-ai/DeepSeek-V2-Lite",
                     "--backend",        "intel_amx",
                     "--kv-cache-dtype", "fp4_e2m1",
                     "--output",         output,
                     "--batch-size",     "1",
                     "--kv-len",         "16",
                     "--q-len",          "16",
                     "--threads",        "2",
                     "--seconds",        "0"};
  ASSERT_EQ(tune_command(argv), 0);
  const Result<TuningTable> table = TuningTable::read(output);
  ASSERT_TRUE(table.ok()) << table.status().message();
  ASSERT_EQ(table->points().size(), 2u);
  for (const TuningPoint& point : table->points()) {
    EXPECT_EQ(point.shape.kv_format, KvFormat::fp4_mla);
    EXPECT_EQ(point.shape.v_head_dim, 512);
  }
}

TEST(Health, NoAnswerIsAFailureAndABadPortAMisuse) {
  const Argv nobody = {"--port", "1", "--timeout", "2"};
  EXPECT_EQ(health_command(nobody), kExitFailed);
  const Argv bad_port = {"--port", "70000"};
  EXPECT_EQ(health_command(bad_port), kExitUsage);
}

}  // namespace
}  // namespace warpweave
