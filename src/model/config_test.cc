// config.json: every number is refused by name or of use, and all spellings of a family mean the same.
#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/layer_plan.h"
#include "model/rope_frequencies.h"

namespace warpweave {
namespace {

using nlohmann::json;

json tiny_config() {
  return {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}, {"vocab_size", 96},
          {"hidden_size", 32}, {"intermediate_size", 48}, {"num_hidden_layers", 4},
          {"num_attention_heads", 4}, {"num_key_value_heads", 4}, {"max_position_embeddings", 128}};
}

// Every number of a configuration at every hostile value: refused with its name, or of use to a decoder.
TEST(Config, NumbersAreRefusedByNameOrOfUse) {
  json base = tiny_config();
  base["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 2.0}, {"rope_theta", 1e4},
                             {"original_max_position_embeddings", 64}, {"beta_fast", 32.0}, {"beta_slow", 1.0},
                             {"attention_factor", 1.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0},
                             {"partial_rotary_factor", 1.0}, {"mscale", 1.0}, {"mscale_all_dim", 1.0}};
  base.update({{"num_key_value_heads", 4}, {"head_dim", 8}, {"rms_norm_eps", 1e-6}, {"attn_logit_softcapping", 50.0},
               {"final_logit_softcapping", 30.0}, {"query_pre_attn_scalar", 16}, {"sliding_window", 16},
               {"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 16},
               {"decoder_sparse_step", 1}, {"rope_local_base_freq", 1e4}, {"eos_token_id", 3}, {"bos_token_id", 2}});
  ASSERT_TRUE(parse_config_json(base.dump()).ok()) << parse_config_json(base.dump()).status().message();
  const char* const kHostile[] = {"0", "-0.0", "-1", "-2147483648", "2147483648", "9223372036854775807", "1e308",
                                  "-1e308", "5e-324", "1.5", "1e-40", "true", "\"1\"", "[]", "{}"};
  const auto check = [&](const json& config, const std::string& key, const char* value) {
    const auto parsed = parse_config_json(config.dump());
    if (!parsed.ok()) {
      EXPECT_NE(parsed.status().message().find(key), std::string::npos)
          << key << "=" << value << ": " << parsed.status().message();
      return;
    }
    EXPECT_TRUE(parsed->norm_eps > 1e-20 && parsed->norm_eps <= 1) << key << "=" << value;
    for (double cap : {parsed->attention_softcap, parsed->final_softcap})
      EXPECT_TRUE(cap >= 1e-3 && cap < 1e10) << key << "=" << value;
    EXPECT_GE(parsed->experts_per_token, parsed->num_experts > 0 ? 1 : 0);
    const RopeFrequencies f = rope_frequencies(parsed->rope, parsed->head_dim, parsed->max_position_embeddings, 4096);
    EXPECT_FALSE(f.inv_freq.empty()) << key << "=" << value;
    for (double frequency : f.inv_freq) EXPECT_TRUE(frequency > 0 && std::isfinite(frequency)) << key << "=" << value;
    EXPECT_TRUE(f.attention_factor > 0 && std::isfinite(f.attention_factor)) << key << "=" << value;
  };
  for (const auto& [key, unused] : base.items()) {
    if (!base[key].is_number()) continue;
    for (const char* value : kHostile) {
      json config = base;
      config[key] = json::parse(value);
      check(config, key, value);
    }
  }
  for (const auto& [key, unused] : base["rope_parameters"].items()) {
    if (!base["rope_parameters"][key].is_number()) continue;
    for (const char* type : {"yarn", "llama3", "linear"}) {
      for (const char* value : kHostile) {
        json config = base;
        config["rope_parameters"]["rope_type"] = type;
        config["rope_parameters"][key] = json::parse(value);
        check(config, key, value);
      }
    }
  }
}

json tiny_encoder(const char* architecture, const char* model_type) {
  json config = tiny_config();
  config["architectures"] = {architecture};
  config["model_type"] = model_type;
  return config;
}

TEST(Config, NumbersOfEncodersAreRefusedByNameOrOfUse) {
  json bert = tiny_encoder("BertModel", "bert"), roberta = tiny_encoder("RobertaForMaskedLM", "roberta");
  json modern = tiny_encoder("ModernBertForSequenceClassification", "modernbert");
  bert.update({{"type_vocab_size", 2}, {"layer_norm_eps", 1e-12}});
  roberta.update({{"pad_token_id", 1}, {"max_position_embeddings", 130}});
  modern.update({{"local_attention", 8},
                 {"norm_eps", 1e-5},
                 {"global_attn_every_n_layers", 3},
                 {"global_rope_theta", 160000.0},
                 {"local_rope_theta", 10000.0}});
  for (const json& base : {bert, roberta, modern}) {
    ASSERT_TRUE(parse_config_json(base.dump()).ok()) << parse_config_json(base.dump()).status().message();
    for (const auto& [key, unused] : base.items()) {
      if (!base[key].is_number()) continue;
      for (const char* value : {"0", "-1", "2147483648", "1e308", "5e-324", "1.5", "true", "\"1\"", "[]"}) {
        json config = base;
        config[key] = json::parse(value);
        const auto parsed = parse_config_json(config.dump());
        if (!parsed.ok()) {
          EXPECT_NE(parsed.status().message().find(key), std::string::npos) << parsed.status().message();
          continue;
        }
        const EncoderConfig& encoder = *parsed->encoder;
        EXPECT_GE(parsed->max_position_embeddings, 1) << key << "=" << value;
        EXPECT_TRUE(encoder.learned_positions == 0 ||
                    encoder.first_position + parsed->max_position_embeddings <= encoder.learned_positions)
            << key << "=" << value;
      }
    }
  }
}

TEST(Config, EncodersByTheirOwnKeys) {
  json modern = tiny_encoder("ModernBertModel", "modernbert");
  modern.update({{"local_attention", 8}, {"global_rope_theta", 160000.0}});
  const auto old_file = parse_config_json(modern.dump());
  modern.update({{"layer_types", {"full_attention", "sliding_attention", "sliding_attention", "full_attention"}},
                 {"rope_parameters", {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 160000.0}}},
                                      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 10000.0}}}}}});
  const auto new_file = parse_config_json(modern.dump());
  ASSERT_TRUE(old_file.ok() && new_file.ok()) << old_file.status().message() << new_file.status().message();
  for (const auto& config : {*old_file, *new_file}) {
    EXPECT_EQ(config.rope.theta, 160000);
    ASSERT_TRUE(config.local_rope);
    EXPECT_EQ(config.local_rope->theta, 10000);
    const std::vector<LayerPlan> layers = transformer_layers(config);
    EXPECT_EQ(layers[0].window_left, -1);
    EXPECT_EQ(layers[0].window_right, -1);
    EXPECT_EQ(layers[1].window_left, 4);
    EXPECT_EQ(layers[2].window_right, 4);
    EXPECT_EQ(layers[3].window_right, -1);
  }
  json relative = tiny_encoder("BertModel", "bert"), decoder = relative;
  relative["position_embedding_type"] = "relative_key";
  decoder["is_decoder"] = true;
  EXPECT_EQ(parse_config_json(relative.dump()).status().field(), "position_embedding_type");
  EXPECT_EQ(parse_config_json(decoder.dump()).status().field(), "is_decoder");
}

TEST(Config, OlderRopeSpellingsMeanTheSame) {
  json config = tiny_config();
  config["rope_theta"] = 500000.0;
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  const auto parsed = parse_config_json(config.dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->rope.type, RopeConfig::Type::linear);
  EXPECT_EQ(parsed->rope.theta, 500000.0);
  EXPECT_EQ(parsed->rope.factor, 4.0);
  EXPECT_EQ(parsed->num_kv_heads, 4);
  EXPECT_EQ(parsed->head_dim, 8);
}

// As in transformers 5: a factor of null is that of the lengths.
TEST(Config, TheFactorOfYarnFollowsFromTheLengths) {
  json config = tiny_config();
  config["max_position_embeddings"] = 96;
  for (const bool given : {false, true}) {
    json scaling = {{"rope_type", "yarn"}, {"original_max_position_embeddings", 32}};
    if (given) scaling["factor"] = nullptr;
    config["rope_scaling"] = scaling;
    const auto parsed = parse_config_json(config.dump());
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(parsed->rope.factor, 3.0);
    EXPECT_EQ(parsed->max_position_embeddings, 96);
  }
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", nullptr}};
  const auto plain = parse_config_json(config.dump());
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_EQ(plain->rope.factor, 1.0);
}

// Model cards say to write rope_scaling for long contexts; newer files have rope_parameters beside it.
TEST(Config, RopeScalingThatSomeoneWroteCounts) {
  json config = tiny_config();
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
  const auto parsed = parse_config_json(config.dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->rope.type, RopeConfig::Type::yarn);
  EXPECT_EQ(parsed->rope.factor, 4.0);
  EXPECT_EQ(parsed->rope.theta, 1e6) << "the base of rope_parameters, where no other is given";
  config["rope_theta"] = 5e5;
  EXPECT_EQ(parse_config_json(config.dump())->rope.theta, 5e5);
  config["rope_scaling"] = {{"rope_type", "unheard-of"}};
  EXPECT_FALSE(parse_config_json(config.dump()).ok());
  for (const json& nothing : {json(), json::object()}) {
    config["rope_scaling"] = nothing;
    const auto plain = parse_config_json(config.dump());
    ASSERT_TRUE(plain.ok()) << plain.status().message();
    EXPECT_EQ(plain->rope.type, RopeConfig::Type::plain);
    EXPECT_EQ(plain->rope.theta, 1e6);
  }
}

TEST(Config, WindowsAsWideAsTheContextHideNothing) {
  json config = tiny_config();
  config["model_type"] = "mistral";
  config["sliding_window"] = 128;
  const auto mistral = parse_config_json(config.dump());
  ASSERT_TRUE(mistral.ok()) << mistral.status().message();
  EXPECT_FALSE(mistral->has_windows());
  EXPECT_EQ(transformer_layers(*mistral)[0].window_left, -1);

  config["model_type"] = "gemma3_text";
  config["rope_local_base_freq"] = 1e4;
  config["num_hidden_layers"] = 6;
  const auto gemma = parse_config_json(config.dump());
  ASSERT_TRUE(gemma.ok()) << gemma.status().message();
  EXPECT_FALSE(gemma->has_windows());
  const std::vector<LayerPlan> layers = transformer_layers(*gemma);
  EXPECT_EQ(layers[0].window_left, -1);
  EXPECT_EQ(layers[0].rope_index, 1) << "the layer's own rope stays";
  EXPECT_EQ(layers[5].rope_index, 0);
}

TEST(Config, OnlyFamiliesThatHaveItKeepBranchesParallel) {
  const auto parallel = [](const char* type, bool asked) {
    json config = tiny_config();
    config["model_type"] = type;
    config["use_parallel_residual"] = asked;
    const auto parsed = parse_config_json(config.dump());
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    return parsed->parallel_residual;
  };
  EXPECT_TRUE(parallel("stablelm", true));
  EXPECT_FALSE(parallel("stablelm", false));
  EXPECT_TRUE(parallel("cohere2", false));
  EXPECT_FALSE(parallel("llama", true)) << "transformers has no such key for Llama";
}

// A rope for each kind of layer is held to the same rules as one for all.
TEST(Config, RopesOfLayerTypesAreChecked) {
  const auto parse = [](const json& full, const json& sliding) {
    json config = tiny_config();
    config["rope_parameters"] = {{"full_attention", full}, {"sliding_attention", sliding}};
    return parse_config_json(config.dump());
  };
  const json plain = {{"rope_type", "default"}, {"rope_theta", 1e4}};
  const json dynamic = {{"rope_type", "dynamic"}, {"rope_theta", 1e4}, {"factor", 4.0}};
  const json longrope = {{"rope_type", "longrope"}, {"rope_theta", 1e4}, {"short_factor", {1.0, 1.0}},
                         {"long_factor", {2.0, 2.0}}, {"original_max_position_embeddings", 64}};

  const auto stretched = parse(dynamic, plain);
  ASSERT_TRUE(stretched.ok()) << stretched.status().message();
  EXPECT_EQ(stretched->max_position_embeddings, 4 * 128);
  EXPECT_EQ(stretched->rope.original_max_positions, 128);
  for (const double f : rope_frequencies(stretched->rope, 8, 512, 512).inv_freq) EXPECT_GT(f, 0);

  const auto local = parse(plain, dynamic);
  ASSERT_TRUE(local.ok()) << local.status().message();
  EXPECT_EQ(local->max_position_embeddings, 128) << "layers with full attention are not stretched";
  EXPECT_EQ(local->local_rope->original_max_positions, 128);

  json whole = longrope;
  whole["short_factor"] = whole["long_factor"] = {1.0, 1.0, 1.0, 1.0};
  EXPECT_TRUE(parse(whole, plain).ok());
  json unknown = whole;
  unknown.erase("original_max_position_embeddings");
  json thin = plain;
  thin["partial_rotary_factor"] = 0.01;
  for (const auto& [full, sliding, rule] : {std::tuple{longrope, plain, "must hold 4 values"},
                                            std::tuple{plain, longrope, "must hold 4 values"},
                                            std::tuple{unknown, plain, "must be at least 2 for longrope"},
                                            std::tuple{plain, thin, "no dimension of a head to rotate"}}) {
    const auto refused = parse(full, sliding);
    ASSERT_FALSE(refused.ok()) << rule;
    EXPECT_NE(refused.status().message().find(rule), std::string::npos) << refused.status().message();
  }
}

TEST(Config, ReadsSectionsOfTheRotation) {
  const auto parse = [](const json& section) {
    json config = tiny_config();
    config["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", section}, {"mrope_interleaved", true}};
    return parse_config_json(config.dump());
  };
  const auto read = parse({2, 1, 1});
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->rope.sections, (std::vector<int>{2, 1, 1}));
  EXPECT_TRUE(read->rope.interleaved_sections);
  EXPECT_TRUE(read->takes_rope_positions());
  EXPECT_FALSE(parse_config_json(tiny_config().dump())->takes_rope_positions());
  for (const json& wrong : {json({2, 1}), json({2, 1, 1, 0}), json({2, 1, "1"}), json({2, 3, -1}), json(4)}) {
    EXPECT_NE(parse(wrong).status().message().find("mrope_section must list"), std::string::npos) << wrong;
  }
  EXPECT_NE(parse({2, 1, 2}).status().message().find("must add up to 4"), std::string::npos);
}

TEST(Config, WindowsWithoutLayerTypes) {
  json config = tiny_config();
  config["sliding_window"] = 16;
  const auto slides = [&](const char* type, json more) {
    config["model_type"] = type;
    json merged = config;
    merged.update(more);
    const auto parsed = parse_config_json(merged.dump());
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    return parsed->sliding_layers;
  };
  EXPECT_EQ(slides("mistral", json::object()), (std::vector<bool>{1, 1, 1, 1}));
  EXPECT_EQ(slides("gemma2", json::object()), (std::vector<bool>{1, 0, 1, 0}));
  EXPECT_EQ(slides("gemma3_text", {{"sliding_window_pattern", 3}}), (std::vector<bool>{1, 1, 0, 1}));
  EXPECT_EQ(slides("qwen3_moe", {{"use_sliding_window", true}, {"num_experts", 8}}), (std::vector<bool>{1, 1, 1, 1}));
  EXPECT_EQ(slides("qwen2", {{"use_sliding_window", true}, {"max_window_layers", 3}}),
            (std::vector<bool>{0, 0, 0, 1}));
  EXPECT_EQ(slides("qwen2", {{"use_sliding_window", false}}), (std::vector<bool>{0, 0, 0, 0}));
}

// A family's default is what a file means by a key that it leaves out; null is a value.
TEST(Config, KeysLeftOutAreTheFamilysDefaults) {
  const auto parsed = [](const char* architecture, const char* type, json more = json::object()) {
    json config = tiny_config();
    config.update({{"architectures", {architecture}}, {"model_type", type}, {"max_position_embeddings", 8192}});
    config.update(more);
    auto out = parse_config_json(config.dump());
    EXPECT_TRUE(out.ok()) << out.status().message();
    return std::move(out).value();
  };
  EXPECT_EQ(parsed("MistralForCausalLM", "mistral").sliding_window, 4096);
  EXPECT_EQ(parsed("MistralForCausalLM", "mistral", {{"sliding_window", nullptr}}).sliding_window, 0);
  EXPECT_EQ(parsed("Olmo2ForCausalLM", "olmo2").norm_eps, 1e-5);
  EXPECT_EQ(parsed("Gemma2ForCausalLM", "gemma2").attention_softcap, 50);
  EXPECT_EQ(parsed("Gemma2ForCausalLM", "gemma2", {{"attn_logit_softcapping", nullptr}}).attention_softcap, 0);
  EXPECT_EQ(parsed("Gemma3ForCausalLM", "gemma3_text", {{"attn_logit_softcapping", 3.0}}).attention_softcap, 0);
  EXPECT_EQ(parsed("Ernie4_5ForCausalLM", "ernie4_5").rope.theta, 5e5);
  const ModelConfig gpt_oss = parsed("GptOssForCausalLM", "gpt_oss", {{"num_local_experts", 8}});
  EXPECT_TRUE(gpt_oss.attention_bias);
  EXPECT_EQ(gpt_oss.experts_per_token, 4);
  const ModelConfig v3 = parsed("DeepseekV3ForCausalLM", "deepseek_v3",
                                {{"n_routed_experts", 16}, {"moe_intermediate_size", 8}});
  EXPECT_EQ(v3.shared_expert_intermediate_size, 8);
  EXPECT_EQ(v3.routed_scaling_factor, 2.5);
  EXPECT_EQ(v3.first_k_dense_replace, 3);
  const json experts = {{"num_experts", 8}, {"shared_expert_intermediate_size", 8}};
  EXPECT_EQ(parsed("Qwen2MoeForCausalLM", "qwen2_moe", experts).experts_per_token, 4);
  EXPECT_TRUE(parsed("Qwen2MoeForCausalLM", "qwen2_moe", experts).attention_bias);
}

TEST(Config, HeadsOfKAndVLeftOutAreTheFamilysDefault) {
  const auto kv_heads = [](const char* architecture, const char* type) {
    json config = tiny_config();
    config.erase("num_key_value_heads");
    config.update({{"architectures", {architecture}}, {"model_type", type}});
    auto out = parse_config_json(config.dump());
    EXPECT_TRUE(out.ok()) << out.status().message();
    return out.ok() ? out.value().num_kv_heads : 0;
  };
  EXPECT_EQ(kv_heads("LlamaForCausalLM", "llama"), 4);  // as many as query heads
  EXPECT_EQ(kv_heads("Starcoder2ForCausalLM", "starcoder2"), 2);
}

// Kernels have these as constants.
TEST(Config, OtherNumbersOfGptOssActivationAreRefused) {
  json config = tiny_config();
  config.update({{"architectures", {"GptOssForCausalLM"}}, {"model_type", "gpt_oss"}, {"num_local_experts", 8},
                 {"swiglu_alpha", 1.702}, {"swiglu_limit", 7.0}});
  EXPECT_TRUE(parse_config_json(config.dump()).ok());
  for (const char* key : {"swiglu_alpha", "swiglu_limit"}) {
    json other = config;
    other[key] = 6.5;
    EXPECT_EQ(parse_config_json(other.dump()).status().field(), key);
  }
}

TEST(Config, ReadsDraftHeads) {
  const auto parse = [](const std::string& more) {
    return parse_config_json(R"({"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "vocab_size": 96,
      "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2)" + more + "}");
  };
  auto head = parse(R"(, "draft_vocab_size": 40, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 9]})");
  ASSERT_TRUE(head.ok()) << head.status().message();
  EXPECT_EQ(head->eagle3->draft_vocab_size, 40);
  EXPECT_EQ(head->eagle3->target_layers, (std::vector<int>{1, 5, 9}));
  EXPECT_TRUE(parse("")->eagle3->target_layers.empty());
  EXPECT_EQ(parse(R"(, "norm_before_residual": true)").status().field(), "norm_before_residual");
  EXPECT_EQ(parse(R"(, "eagle_config": 1)").status().field(), "eagle_config");
  for (const char* ids : {"[1, 2]", "[1, 2, 3, 4]", "[1, 2, 100000]", "[-1, 2, 3]"}) {
    EXPECT_EQ(
        parse(std::string(R"(, "eagle_config": {"eagle_aux_hidden_state_layer_ids": )") + ids + "}").status().field(),
        "eagle_aux_hidden_state_layer_ids")
        << ids;
  }
  EXPECT_EQ(parse(R"(, "eagle_config": {"use_aux_hidden_state": false})").status().field(), "use_aux_hidden_state");
}

}  // namespace
}  // namespace warpweave
