#include "cli/model_facts.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/engine_impl.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;

ModelFacts known(std::string_view name) {
  const auto model = find_known_model(name);
  EXPECT_TRUE(model.has_value()) << name;
  const auto facts = model_facts_from_config(model ? model->config : "", "auto");
  EXPECT_TRUE(facts.ok()) << name << ": " << facts.status().message();
  return facts.ok() ? *facts : ModelFacts{};
}

TEST(KnownModels, AllHaveFacts) {
  EXPECT_GE(known_model_names().size(), 30u);
  for (const std::string& name : known_model_names()) {
    const ModelFacts facts = known(name);
    EXPECT_FALSE(facts.architecture.empty()) << name;
    EXPECT_GT(facts.num_q_heads, 0) << name;
    EXPECT_EQ(facts.num_q_heads % facts.num_kv_heads, 0) << name;
  }
}

TEST(KnownModels, FactsOfTheirConfigs) {
  EXPECT_EQ(known("meta-llama/Llama-3.1-8B").num_kv_heads, 8);
  EXPECT_EQ(known("Llama-3.1-8B-Instruct").head_dim, 128);
  EXPECT_EQ(known("qwen3-30b-a3b-instruct-2507").num_kv_heads, 4);
  EXPECT_EQ(known("Qwen/Qwen3.5-35B-A3B").linear, LinearAttention::gdn);
  EXPECT_TRUE(known("Qwen/Qwen3.5-35B-A3B").vision);
  EXPECT_TRUE(known("Qwen2.5-14B-Instruct-1M").dual_chunk);
  EXPECT_FALSE(known("Qwen2.5-7B-Instruct").dual_chunk);
  EXPECT_EQ(known("DeepSeek-V3").kind, AttentionKind::mla);
  EXPECT_EQ(known("DeepSeek-V3").head_dim, 576);
  EXPECT_EQ(known("DeepSeek-R1-0528").v_head_dim, 512);
  EXPECT_EQ(known("DeepSeek-V3.2").kind, AttentionKind::sparse);
  EXPECT_EQ(known("Kimi-Linear-48B-A3B-Instruct").linear, LinearAttention::kda);
  EXPECT_EQ(known("Kimi-Linear-48B-A3B-Instruct").kind, AttentionKind::mla);
  EXPECT_TRUE(known("gpt-oss-20b").sinks);
  EXPECT_TRUE(known("gpt-oss-120b").sliding_window);
  EXPECT_TRUE(known("gemma-2-9b-it").softcap);
  EXPECT_TRUE(known("gemma-3-27b-it").vision);
  EXPECT_TRUE(known("Mistral-7B-v0.1").sliding_window);
  EXPECT_FALSE(known("Mistral-7B-v0.3").sliding_window);
  EXPECT_FALSE(find_known_model("somebody/else").has_value());
}

TEST(KnownModels, NamesInManyForms) {
  const auto name = [](std::string_view text) {
    const auto found = find_known_model(text);
    return found ? found->name : "none";
  };
  EXPECT_EQ(name("meta-llama/Meta-Llama-3.1-8B-Instruct"), "meta-llama/Llama-3.1-8B");
  EXPECT_EQ(name("Meta-Llama-3.1-8B"), "meta-llama/Llama-3.1-8B");
  EXPECT_EQ(name("meta-llama/Meta-Llama-3-8B-Instruct"), "meta-llama/Meta-Llama-3-8B");
  EXPECT_EQ(name("deepseek-ai/DeepSeek-R1"), "deepseek-ai/DeepSeek-R1");
  EXPECT_EQ(name("DeepSeek-R1-0528"), "deepseek-ai/DeepSeek-R1");
  EXPECT_EQ(name("nvidia/DeepSeek-R1-FP4"), "nvidia/DeepSeek-R1-FP4");
  EXPECT_EQ(name("DeepSeek-R1-FP4"), "nvidia/DeepSeek-R1-FP4");
  EXPECT_EQ(name("Qwen/Qwen3.5-35B-A3B-FP8"), "Qwen/Qwen3.5-35B-A3B");
  EXPECT_EQ(name("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8"), "Qwen/Qwen3-30B-A3B");
  EXPECT_EQ(name("Qwen/Qwen2.5-14B-Instruct-1M"), "Qwen/Qwen2.5-14B-1M");
  EXPECT_EQ(name(std::string(100000, 'a')), "none");
  // How the weights are stored is in the name.
  const auto method = [](std::string_view text) {
    const auto config = read_served_config(find_known_model(text)->config);
    return config.ok() ? config->quant_method : config.status().message();
  };
  EXPECT_EQ(method("Qwen3-8B"), "");
  EXPECT_EQ(method("Qwen3-8B-FP8"), "fp8");
  EXPECT_EQ(method("Qwen3-8B-AWQ"), "awq");
  EXPECT_EQ(method("Qwen2.5-7B-Instruct-GPTQ-Int4"), "gptq");
  EXPECT_EQ(method("Llama-3.1-8B-Instruct-FP4"), "modelopt");
}

// explain reads config.json itself, serving through the model's parser: they must agree.
TEST(ModelFacts, AgreeWithWhatServingReads) {
  int compared = 0;
  for (const auto& entry : fs::recursive_directory_iterator("tests/golden/families")) {
    if (entry.path().filename() != "config.json") continue;
    SCOPED_TRACE(entry.path().string());
    std::ifstream file(entry.path());
    std::stringstream text;
    text << file.rdbuf();
    const auto config = parse_config_json(text.str());
    ASSERT_TRUE(config.ok()) << config.status().message();
    const auto dtype = resolve_dtype("auto", config->dtype);
    ASSERT_TRUE(dtype.ok());
    const ModelFacts served = attention_model_facts(*config, *dtype);
    const auto explained = model_facts_from_config(text.str(), "auto");
    ASSERT_TRUE(explained.ok()) << explained.status().message();
    EXPECT_EQ(explained->architecture, served.architecture);
    EXPECT_EQ(explained->dtype, served.dtype);
    EXPECT_EQ(explained->num_q_heads, served.num_q_heads);
    EXPECT_EQ(explained->num_kv_heads, served.num_kv_heads);
    EXPECT_EQ(explained->head_dim, served.head_dim);
    EXPECT_EQ(explained->sliding_window, served.sliding_window);
    EXPECT_EQ(explained->softcap, served.softcap);
    EXPECT_EQ(explained->sinks, served.sinks);
    EXPECT_EQ(explained->dual_chunk, served.dual_chunk);
    EXPECT_EQ(explained->linear, served.linear);
    ++compared;
  }
  EXPECT_GE(compared, 5);
}

TEST(ModelFacts, WrongConfigsAreNamed) {
  for (const char* text : {"", "[]", "{}", R"({"num_attention_heads": 8})",
                           R"({"num_attention_heads": "8", "head_dim": 64})"}) {
    const auto facts = model_facts_from_config(text, "auto");
    ASSERT_FALSE(facts.ok()) << text;
    EXPECT_EQ(facts.status().code(), StatusCode::data_loss);
  }
}

TEST(ModelFacts, UnknownModelsNameANearOne) {
  ServerArgs args;
  args.model_path = "Qwen/Qwen3-8C";
  const auto facts = explain_model_facts(args);
  ASSERT_FALSE(facts.ok());
  EXPECT_NE(facts.status().message().find("did you mean Qwen/Qwen3-8B?"), std::string::npos)
      << facts.status().message();
}

}  // namespace
}  // namespace warpweave
