// explain gives serve's answer: the same checks, proposals that work, launch lines that users know.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "attention/registry.h"
#include "base/testing/temporary_folder.h"
#include "cli/explain_testing.h"
#include "cli/model_facts.h"
#include "engine/engine_impl.h"
#include "model/families/family.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;

Argv words_of(const std::string& line) {
  std::istringstream stream(line);
  Argv words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}
// The configurations behind "; works: " of a message, each as words of a command line.
std::vector<Argv> proposals_of(const std::string& message) {
  std::vector<Argv> list;
  const size_t start = message.find("; works: --");
  if (start == std::string::npos) return list;
  std::string rest = message.substr(start + 9);
  for (size_t bar; !rest.empty(); rest = bar == std::string::npos ? "" : rest.substr(bar + 3)) {
    bar = rest.find(" | ");
    const std::string one = rest.substr(0, bar);
    list.push_back(one == "no attention flags" ? Argv{} : words_of(one));
  }
  return list;
}

TEST(Explain, ExitCodes) {
  const auto exit_code = [](const Argv& argv) { return explain_json(argv).exit_code; };
  EXPECT_EQ(exit_code({}), 0);
  EXPECT_EQ(exit_code({"--hardware", "xeon"}), 0);
  EXPECT_EQ(exit_code({"--hardware", "h200", "--model-path", "Qwen/Qwen3-8B"}), 0);
  EXPECT_EQ(exit_code({"--hardware", "h200", "--model-path", "deepseek-ai/DeepSeek-V3.2"}), kExitRefused);
  EXPECT_EQ(exit_code({"--hardware", "h200", "--model-path", "Qwen/Qwen3-8B", "--tp", "8"}), kExitRefused);
  EXPECT_EQ(exit_code({"--hardware", "intel-gpu"}), kExitRefused);
  EXPECT_EQ(exit_code({"--attention-backend", "no_such_backend"}), kExitRefused);
  EXPECT_EQ(exit_code({"--attention-backend", "trtllm_mla"}), kExitRefused);
  EXPECT_EQ(exit_code({"--hardware", "a100", "--attention-backend", "fa3"}), kExitRefused);
  EXPECT_EQ(exit_code({"--quantization", "modelopt_fp4"}), kExitRefused);
  EXPECT_EQ(exit_code({"--speculative-algorithm", "EAGLE"}), kExitRefused);
  EXPECT_EQ(exit_code({"--chat-template", "/nonexistent"}), kExitRefused);
  EXPECT_EQ(exit_code({"--chat-template", "{% for %}"}), kExitRefused);
  EXPECT_EQ(exit_code({"--chat-template", "{{ messages[0].content }}"}), 0);
  EXPECT_EQ(exit_code({"--completion-template", "/nonexistent"}), kExitRefused);
  EXPECT_EQ(exit_code({"--allowed-origins", "a.example/path"}), kExitRefused);
  EXPECT_EQ(exit_code({"--allowed-hosts", "http://a.example"}), kExitRefused);
  EXPECT_EQ(exit_code({"--quantization", "fp7"}), kExitUsage);
  EXPECT_EQ(exit_code({"--hardware", "abacus"}), kExitUsage);
  EXPECT_EQ(exit_code({"--hardware", "h200", "--device", "cpu"}), kExitUsage);
  EXPECT_EQ(exit_code({"--device", "abacus"}), kExitUsage);
  EXPECT_EQ(exit_code({"--model-path", "/nonexistent"}), kExitFailed);
  EXPECT_EQ(exit_code({"--attention-tuning-file", "/nonexistent"}), kExitFailed);
}

// In a folder with weights, in one without, and in a published configuration.
TEST(Explain, FindsLayersThatPredictFurtherTokens) {
  const Argv nextn = {"--speculative-algorithm", "NEXTN", "--skip-tokenizer-init", "--model-path"};
  for (const char* model : {"nextn-qwen3-next", "nextn-deepseek-v3", "nextn-glm4-moe", "gguf-nextn-qwen3_5/model.gguf"}) {
    EXPECT_EQ(explain_json(nextn + Argv{std::string("tests/golden/drafts/") + model, "--device", "cpu"}).exit_code, 0) << model;
  }
  const TemporaryFolder folder;
  fs::copy_file("tests/golden/drafts/nextn-glm4-moe/config.json", folder / "config.json");
  EXPECT_EQ(explain_json(nextn + Argv{folder.path().string(), "--device", "cpu"}).exit_code, 0);
  EXPECT_EQ(explain_json(nextn + Argv{"Qwen/Qwen3-Next-80B-A3B", "--hardware", "xeon"}).exit_code, 0);
  for (const Argv& model : {Argv{"tests/golden/families/qwen3-next", "--device", "cpu"}, Argv{"Qwen/Qwen3-8B", "--hardware", "xeon"}}) {
    const Explained found = explain_json(nextn + model);
    EXPECT_EQ(found.exit_code, kExitRefused) << model[0];
    EXPECT_EQ(found.json["error"]["flag"], "--speculative-algorithm") << model[0];
  }
}

TEST(Explain, LaunchLinesThatUsersKnow) {
  std::ifstream file("tests/attention/launch_lines.txt");
  int lines = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    ++lines;
    for (const char* hardware : {"", "h200", "h20", "b200", "gb200", "a100", "a40", "rtx4090", "rtx5090", "mi300x",
                                 "mi355x", "npu", "intel_xpu", "xeon"}) {
      const Explained found = explain_json(words_of(line) + (*hardware ? Argv{"--hardware", hardware} : Argv{}));
      SCOPED_TRACE(line + " --hardware " + hardware);
      if (found.exit_code == 0) {
        EXPECT_TRUE(found.json["serves"].get<bool>());
        continue;
      }
      EXPECT_EQ(found.exit_code, kExitRefused);
      EXPECT_FALSE(found.json["error"]["message"].get<std::string>().empty());
      EXPECT_FALSE(found.json["error"]["flag"].get<std::string>().empty());
    }
  }
  EXPECT_GE(lines, 20);
}

// What serve does with the same flags: the parser's answer, then the engine's.
bool serves(const Argv& argv, std::string& why) {
  const Result<ParsedFlags> parsed = parse_flags(Command::serve, argv);
  if (!parsed.ok()) {
    why = parsed.status().message();
    return false;
  }
  EngineOptions options;
  options.args = parsed->args;
  options.model_path = parsed->args.model_path;
  const Result<ServedModel> served = create_engine(options);
  why = served.ok() ? "" : served.status().message();
  return served.ok();
}

const Argv kSmall = {"--device", "cpu", "--skip-tokenizer-init", "--max-total-tokens", "512", "--threads", "1",
                     "--log-level", "error"};

std::vector<Argv> flag_sets() {
  std::vector<Argv> sets;
  for (const char* line :
       {"", "--tp 2", "--page-size 3", "--page-size 64", "--attention-backend fa3", "--attention-backend trtllm_mha",
        "--attention-backend torch_native", "--attention-backend flex_attention", "--attention-backend triton",
        "--decode-attention-backend intel_xpu", "--kv-cache-dtype fp4_e2m1", "--kv-cache-dtype fp8_e5m2",
        "--context-length 100000000", "--quantization fp8", "--quantization awq", "--dtype float16",
        "--mm-attention-backend fa3", "--linear-attn-backend triton", "--nsa-prefill-backend fa3",
        "--enable-deterministic-inference", "--cuda-graph-bs abc", "--cuda-graph-bs 1 2 4,8",
        "--flex-attention-mask-mod window(4)",
        "--attention-backend flex_attention --flex-attention-mask-mod window(4)", "--chunked-prefill-size -1"}) {
    sets.push_back(words_of(line));
  }
  return sets;
}

std::vector<std::string> small_models() {
  std::vector<std::string> paths;
  for (const auto& folder : fs::directory_iterator("tests/golden/families")) {
    const fs::path gguf = folder.path() / "model.gguf";
    paths.push_back(fs::exists(gguf) ? gguf.string() : folder.path().string());
  }
  for (const auto& folder : fs::directory_iterator("models")) {
    if (fs::exists(folder.path() / "config.json")) paths.push_back(folder.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST(Explain, AnswersAsServeDoes) {
  int served = 0, refused = 0;
  for (const std::string& path : small_models()) {
    for (const Argv& flags : flag_sets()) {
      const Argv argv = Argv{"--model-path", path} + kSmall + flags;
      SCOPED_TRACE(text_of(argv));
      const Explained explained = explain_json(argv);
      std::string why;
      const bool does_serve = serves(argv, why);
      ASSERT_EQ(explained.exit_code == 0, does_serve) << why << "\n" << explained.json.dump();
      ++(does_serve ? served : refused);
    }
  }
  EXPECT_GT(served, 100);
  EXPECT_GT(refused, 100);
}

// 0 where both refuse with the same words. In a process of its own: what was found of OpenCL is kept.
[[noreturn]] void compare_without_opencl() {
  ::setenv("OCL_ICD_VENDORS", "/nonexistent", 1);
  const Argv argv = words_of("--model-path tests/golden/families/qwen3-next --linear-attn-backend triton") + kSmall;
  const Explained explained = explain_json(argv);
  std::string why;
  if (serves(argv, why)) _exit(2);
  _exit(explained.exit_code == kExitRefused && explained.json["error"]["message"] == why ? 0 : 3);
}

TEST(ExplainDeathTest, RefusesLinearLayersWithoutAnOpenClDeviceAsServeDoes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(compare_without_opencl(), testing::ExitedWithCode(0), "");
}

// Every well-known model, with made-up weights where it is small enough: explain says 0 exactly for the
// architectures of the registry, and serve refuses the others.
TEST(Explain, WellKnownModelsOfUnservedFamiliesAreRefusedByBoth) {
  std::map<std::string, bool> architectures;
  TemporaryFolder folder;
  for (const std::string& name : known_model_names()) {
    SCOPED_TRACE(name);
    const auto known = find_known_model(name);
    ASSERT_TRUE(known.has_value());
    const auto config = nlohmann::json::parse(known->config);
    const std::string architecture = config["architectures"][0];
    const bool family = find_family(architecture).ok();
    const auto quantization = config.value("quantization_config", nlohmann::json::object());
    const std::string method = quantization.value("quant_method", "");
    const bool in_4_bits = method == "mxfp4" || method == "modelopt";
    const Explained explained = explain_json({"--device", "cpu", "--model-path", name});
    EXPECT_EQ(explained.exit_code, family && !in_4_bits ? 0 : kExitRefused) << explained.json.dump();
    architectures[architecture] = family;
    if (family) continue;
    const Explained on_a_gpu = explain_json({"--hardware", "h200", "--model-path", name});
    EXPECT_FALSE(on_a_gpu.json["attention_by_rule"].is_null()) << on_a_gpu.json.dump();
    std::ofstream(folder / "config.json") << known->config;
    std::string why;
    EXPECT_FALSE(serves(Argv{"--model-path", folder.path().string(), "--load-format", "dummy"} + kSmall, why));
    EXPECT_NE(why.find(architecture), std::string::npos) << why;
  }
  EXPECT_GE(architectures.size(), 15u);
}

// The proposal replaces the attention flags; the others stay.
TEST(Explain, ProposalsWorkInThisProgram) {
  std::set<std::string> names;
  for (const KnownBackend& backend : known_backends()) names.insert(std::string(backend.caps->name));
  std::set<std::string> checked;
  int refused = 0;
  for (const Argv& others : {Argv{}, Argv{"--flex-attention-mask-mod", "window(4)"}}) {
    for (const Argv& target : {Argv{"--device", "cpu"}, Argv{"--hardware", "h200"}, Argv{"--hardware", "l40s"}}) {
      for (const char* model : {"models/tale-llama", "gemma-2-9b", "gpt-oss-20b-bf16", "Qwen2.5-7B-Instruct-1M"}) {
        const bool oss = std::string(model) == "gpt-oss-20b-bf16";
        const Argv base = Argv{"--model-path", oss ? "tests/golden/families/gpt-oss" : model} + target + others;
        for (const std::string& name : names) {
          for (const char* more : {"", "--page-size 16", "--kv-cache-dtype fp8_e5m2",
                                   "--enable-deterministic-inference", "--decode-attention-backend triton"}) {
            const Explained found = explain_json(base + Argv{"--attention-backend", name} + words_of(more));
            if (found.exit_code == 0) continue;
            ++refused;
            ASSERT_EQ(found.exit_code, kExitRefused) << text_of(base) << name;
            for (const Argv& proposal : proposals_of(found.json["error"]["message"])) {
              if (!checked.insert(text_of(base + proposal)).second) continue;
              EXPECT_EQ(explain_json(base + proposal).exit_code, 0) << text_of(base + proposal);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(checked.size(), 30u);
}

// 671 billion weights: those of the layers in 8 bits with a scale for each 128 x 128, routers and embeddings in 16.
TEST(Explain, SaysByHowManyBytesAModelDoesNotFit) {
  const Explained found = explain_json({"--hardware", "h200", "--model-path", "deepseek-ai/DeepSeek-V3"});
  ASSERT_EQ(found.exit_code, kExitRefused);
  const std::string message = found.json["error"]["message"];
  EXPECT_NE(message.find("take 673148532400 bytes, and NVIDIA H200 has 151397597184"), std::string::npos) << message;
  const Explained lite = explain_json({"--hardware", "h200", "--model-path", "deepseek-ai/DeepSeek-V2-Lite"});
  for (const auto& error : lite.json.value("errors", nlohmann::json::array())) {
    EXPECT_EQ(error["message"].get<std::string>().find("do not fit"), std::string::npos) << error;
  }
}

// In bf16 twice what they are in 8 bits, which the refusal names, and which then are what is counted.
TEST(Explain, CountsWeightsAsTheyWillBeServed) {
  const auto explain = [](const std::string& model, std::vector<std::string> more) {
    std::vector<std::string> flags = {"--hardware", "h200", "--model-path", model};
    flags.insert(flags.end(), more.begin(), more.end());
    return explain_json(flags);
  };
  const std::string air = "zai-org/GLM-4.5-Air";
  const std::string wide = explain(air, {}).json["error"]["message"];
  EXPECT_NE(wide.find("take 213702410240 bytes in bf16"), std::string::npos) << wide;
  EXPECT_NE(wide.find("use --quantization fp8 ("), std::string::npos) << wide;
  EXPECT_EQ(explain(air, {"--quantization", "fp8"}).exit_code, 0);
  // Nothing is kept in 8 bits there.
  EXPECT_EQ(explain(air, {"--quantization", "fp8", "--dtype", "float32"}).exit_code, kExitRefused);
  EXPECT_EQ(explain("Qwen/Qwen3-30B-A3B", {"--hardware", "a40", "--quantization", "fp8"}).exit_code, kExitRefused);
  // Experts in one tensor stay in 16 bits.
  const std::string oss = explain("openai/gpt-oss-120b", {"--quantization", "fp8"}).json["error"]["message"];
  EXPECT_NE(oss.find("do not fit"), std::string::npos) << oss;
}

TEST(Explain, SaysWhereLatentPromptsChangeTheirForm) {
  const auto reason_on = [](const std::string& hardware, std::vector<std::string> more = {}) {
    std::vector<std::string> flags = {"--hardware", hardware, "--model-path", "deepseek-ai/DeepSeek-V2-Lite"};
    flags.insert(flags.end(), more.begin(), more.end());
    const Explained found = explain_json(flags);
    for (const auto& reason : found.json.value("reasons", nlohmann::json::array())) {
      if (reason.get<std::string>().starts_with("prompts of latent attention: ")) return reason.get<std::string>();
    }
    return std::string();
  };
  EXPECT_NE(reason_on("h200").find("expanded from "), std::string::npos) << reason_on("h200");
  EXPECT_NE(reason_on("h200").find("behind 32768 cached"), std::string::npos) << reason_on("h200");
  EXPECT_NE(reason_on("h200").find("by the times of both forms measured on NVIDIA H200"), std::string::npos);
  EXPECT_NE(reason_on("h100").find("by counting multiplications"), std::string::npos) << reason_on("h100");
  EXPECT_NE(reason_on("cpu").find("absorbed, the only form here"), std::string::npos) << reason_on("cpu");
  const std::string without = reason_on("h200", {"--disable-chunked-prefix-cache"});
  EXPECT_NE(without.find("new tokens, never behind cached ones (--disable-chunked-prefix-cache)"), std::string::npos)
      << without;
}

TEST(Explain, DeterministicHybridsKeepTheirStatesInF32) {
  const Argv base = {"--model-path", "tests/golden/families/qwen3-next", "--mamba-ssm-dtype", "bfloat16"};
  for (const Argv& target : {Argv{"--device", "cpu"}, Argv{"--hardware", "h200"}}) {
    EXPECT_EQ(explain_json(base + target).exit_code, 0);
    const Explained found = explain_json(base + target + Argv{"--enable-deterministic-inference"});
    ASSERT_EQ(found.exit_code, kExitRefused);
    EXPECT_EQ(found.json["error"]["flag"], "--mamba-ssm-dtype") << found.json.dump();
  }
}

TEST(Explain, DeterministicHybridsCutPromptsBetweenChunks) {
  const Argv model = {"--model-path", "tests/golden/families/qwen3-next", "--enable-deterministic-inference",
                      "--speculative-algorithm", "NGRAM"};
  const Argv gpu = Argv{"--hardware", "h200"} + model, cpu = Argv{"--hardware", "xeon"} + model;
  const Argv half = {"--dtype", "bfloat16"}, whole = {"--dtype", "float32"};
  for (const Argv& cutting : {gpu + half, cpu + half, cpu + whole}) {
    const Explained served = explain_json(cutting + Argv{"--mamba-track-interval", "128"});
    ASSERT_EQ(served.exit_code, 0) << served.json.dump();
    EXPECT_EQ(served.json["enable_mixed_chunk"], false);
    for (const Argv& cut : {Argv{"--enable-mixed-chunk"}, Argv{"--mamba-track-interval", "96"},
                            Argv{"--chunked-prefill-size", "63"}}) {
      const Explained found = explain_json(cutting + cut);
      ASSERT_EQ(found.exit_code, kExitRefused) << text_of(cutting + cut);
      EXPECT_EQ(found.json["error"]["flag"], cut[0]) << found.json.dump();
      EXPECT_EQ(explain_json(gpu + whole + cut).exit_code, 0) << text_of(cut);
    }
  }
}

// Written for the machine, but perhaps not built into this program.
TEST(Explain, SaysWhatThisProgramLacks) {
  const Explained found = explain_json({"--hardware", "h200", "--model-path", "Qwen/Qwen3-8B"});
  ASSERT_EQ(found.exit_code, 0) << found.json.dump();
  EXPECT_EQ(found.json["prefill_attention_backend"], "fa3");
  EXPECT_EQ(found.json["model"]["num_key_value_heads"], 8);
  const auto known = known_backends();
  const bool built = std::any_of(known.begin(), known.end(), [](const KnownBackend& backend) {
    return backend.caps->name == "fa3" && backend.built;
  });
  EXPECT_EQ(found.json["notes"].size(), built ? 1u : 2u) << found.json["notes"].dump();
}

// Rows of A are as long as a module's input, columns of B as its output: q and o (64 + 64), k and v (64 + 32), gate, up
// and down (64 + 192) of two layers, by the configuration written here.
TEST(Explain, SaysWhatAdaptersMayTake) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "config.json")
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 192, "vocab_size": 300,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"})";
  const Argv model = {"--model-path", folder.path().string(), "--hardware", "h200"};
  EXPECT_FALSE(explain_json(model).json.contains("adapters"));
  const Explained found =
      explain_json(model + Argv{"--enable-lora", "--max-lora-rank", "8", "--max-loaded-loras", "5"});
  ASSERT_EQ(found.exit_code, 0) << found.json;
  const int64_t each = 2 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 192)) * 8 * 2;
  EXPECT_EQ(found.json["adapters"]["max_bytes_each"], each);
  EXPECT_EQ(found.json["adapters"]["max_bytes"], 5 * each);
}

// What serve says of the layers that its start leaves out is known from the names in the file.
TEST(Explain, NamesLayersThatTheConfigurationLeavesOut) {
  const TemporaryFolder folder;
  const fs::path model = folder.path() / "model";
  fs::copy("tests/golden/families/llama", model);
  EXPECT_EQ(explain_json({"--model-path", model}).json["notes"], nlohmann::json::array());
  auto config = nlohmann::json::parse(std::ifstream(model / "config.json"));
  config["num_hidden_layers"] = 1;
  std::ofstream(model / "config.json") << config;
  const Explained found = explain_json({"--model-path", model});
  ASSERT_EQ(found.exit_code, 0) << found.json;
  ASSERT_EQ(found.json["notes"].size(), 1u) << found.json;
  EXPECT_NE(found.json["notes"][0].get<std::string>().find("9 tensors are not used, from model.layers.1."),
            std::string::npos) << found.json["notes"];
}

// Notes on a golden model whose configuration has other values.
nlohmann::json notes_with(const std::string& family, const nlohmann::json& changes) {
  const TemporaryFolder folder;
  const fs::path model = folder.path() / "model";
  fs::copy("tests/golden/families/" + family, model);
  auto config = nlohmann::json::parse(std::ifstream(model / "config.json"));
  config.update(changes);
  std::ofstream(model / "config.json") << config;
  return explain_json({"--model-path", model}).json["notes"];
}

TEST(Explain, NamesTensorsThatTheModelWouldNotRead) {
  EXPECT_EQ(notes_with("qwen2", nlohmann::json::object()), nlohmann::json::array());
  const nlohmann::json notes = notes_with("qwen2", {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}});
  ASSERT_EQ(notes.size(), 1u) << notes;
  EXPECT_NE(notes[0].get<std::string>().find("6 tensors are in the weights and not used by LlamaForCausalLM: "
                                             "model.layers.0.self_attn.k_proj.bias"),
            std::string::npos) << notes;
}

TEST(Explain, NamesTensorsThatServeWouldMiss) {
  const nlohmann::json notes = notes_with("llama", {{"num_hidden_layers", 3}});
  ASSERT_EQ(notes.size(), 1u) << notes;
  EXPECT_TRUE(notes[0].get<std::string>().starts_with(
      "serve would stop while it reads the weights: tensor model.layers.2.")) << notes;
}

TEST(Explain, AllSpellingsOfAnIntelGpu) {
  for (const char* name : {"intel-gpu", "intel_xpu", "intel-xpu"}) {
    EXPECT_EQ(explain_json({"--hardware", name}).json["hardware"]["arch"], "Intel GPU") << name;
  }
}

}  // namespace
}  // namespace warpweave
