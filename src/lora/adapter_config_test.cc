#include "lora/adapter_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

namespace warpweave {
namespace {

// A configuration with `more` members in front of the ones that every one has.
std::string with(const std::string& more) {
  return "{" + more + (more.empty() ? "" : ", ") +
         R"("peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"})";
}

TEST(AdapterConfig, ReadsWhatPeftSaves) {
  std::ifstream file("tests/golden/lora/llama-patterns-r16/adapter_config.json");
  std::stringstream text;
  text << file.rdbuf();
  const auto config = parse_adapter_config(text.str());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->rank_of("model.layers.0.mlp.down_proj"), 16);
  EXPECT_EQ(config->rank_of("model.layers.0.mlp.gate_proj"), 16);
  EXPECT_EQ(config->rank_of("model.layers.1.mlp.gate_proj"), 4);
  EXPECT_EQ(config->rank_of("model.layers.1.self_attn.k_proj"), 8);
  EXPECT_FLOAT_EQ(config->scale_of("model.layers.1.mlp.down_proj"), 1.5f);
  EXPECT_FLOAT_EQ(config->scale_of("model.layers.0.self_attn.k_proj"), 0.25f);
  EXPECT_FLOAT_EQ(config->scale_of("model.layers.1.self_attn.k_proj"), 1.0f);
}

TEST(AdapterConfig, ScalesByTheRootOfTheRankWhereAsked) {
  const auto config = parse_adapter_config(with(R"("use_rslora": true, "rank_pattern": {"k_proj": 4})"));
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_FLOAT_EQ(config->scale_of("model.layers.0.self_attn.q_proj"), 16 / std::sqrt(8.0f));
  EXPECT_FLOAT_EQ(config->scale_of("model.layers.0.self_attn.k_proj"), 8.0f);
  EXPECT_EQ(config->rank_of("model.layers.0.self_attn.xk_proj"), 8);  // only whole parts of a path
}

TEST(AdapterConfig, RefusesByNameWhatItDoesNotServe) {
  const std::pair<const char*, const char*> cases[] = {{"use_dora", "true"},
                                                       {"lora_bias", "true"},
                                                       {"modules_to_save", R"(["lm_head"])"},
                                                       {"use_qalora", "true"},
                                                       {"fan_in_fan_out", "true"},
                                                       {"layer_replication", "[[0, 4]]"},
                                                       {"init_lora_weights", R"("pissa")"},
                                                       {"trainable_token_indices", "[1]"},
                                                       {"target_parameters", R"(["x"])"},
                                                       {"something_new", "3"},
                                                       {"alora_invocation_tokens", "[1]"},
                                                       {"loftq_config", R"({"loftq_bits": 4})"},
                                                       {"rank_pattern", R"({".*q_proj": 4})"}};
  for (const auto& [field, value] : cases) {
    const auto config = parse_adapter_config(with("\"" + std::string(field) + "\": " + value));
    ASSERT_FALSE(config.ok()) << field;
    EXPECT_EQ(config.status().code(), StatusCode::unsupported) << config.status().message();
    EXPECT_EQ(config.status().field(), field);
    EXPECT_NE(config.status().message().find(field), std::string::npos) << config.status().message();
  }
}

TEST(AdapterConfig, TakesFieldsThatAskForNothing) {
  const auto config = parse_adapter_config(with(
      R"("use_dora": false, "modules_to_save": null, "something_new": null, "layer_replication": [], "lora_dropout": 0.5)"));
  EXPECT_TRUE(config.ok()) << config.status().message();
}

TEST(AdapterConfig, RefusesValuesOutOfRange) {
  for (const char* text :
       {R"({"peft_type": "LORA", "r": 0, "lora_alpha": 1})", R"({"peft_type": "LORA", "r": 513, "lora_alpha": 1})",
        R"({"peft_type": "LORA", "r": 1.5, "lora_alpha": 1})", R"({"peft_type": "LORA", "r": 8, "lora_alpha": "x"})",
        R"({"peft_type": "LORA", "r": 8})", R"({"r": 8, "lora_alpha": 1})", R"({"peft_type": "LORA", "lora_alpha": 1})",
        R"({"peft_type": "LORA", "r": 8, "lora_alpha": 1, "use_rslora": 1})",
        R"({"peft_type": "LORA", "r": 8, "lora_alpha": 1, "rank_pattern": {"a": 0}})",
        R"({"peft_type": "LORA", "r": 8, "lora_alpha": 1, "target_modules": [1]})", "[]", "", "{"}) {
    EXPECT_FALSE(parse_adapter_config(text).ok()) << text;
  }
  for (const char* text : {R"({"peft_type": "IA3", "r": 8, "lora_alpha": 1})",
                           R"({"peft_type": "LORA", "r": 8, "lora_alpha": 1, "bias": "all"})"}) {
    const auto config = parse_adapter_config(text);
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.status().code(), StatusCode::unsupported) << text;
  }
}

TEST(AdapterConfig, BoundsItsSizeAndItsPatterns) {
  EXPECT_FALSE(parse_adapter_config(std::string(kMaxAdapterConfigBytes + 1, ' ')).ok());
  std::string patterns = "\"rank_pattern\": {\"m\": 1";
  for (size_t i = 0; i < kMaxLoraPatterns; ++i) patterns += ", \"m" + std::to_string(i) + "\": 1";
  EXPECT_FALSE(parse_adapter_config(with(patterns + "}")).ok());
}

}  // namespace
}  // namespace warpweave
