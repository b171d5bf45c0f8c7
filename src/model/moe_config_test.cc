// config.json of mixtures of experts and of hybrid models: what the router and the layers are told, and what is
// refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/build_decoder.h"
#include "model/families/family.h"
#include "model/rope_frequencies.h"

namespace warpweave {
namespace {

using nlohmann::json;

json glm(const json& changes = json::object()) {
  json out = {{"architectures", {"Glm4MoeForCausalLM"}}, {"model_type", "glm4_moe"}, {"vocab_size", 100},
              {"hidden_size", 64}, {"intermediate_size", 128}, {"num_hidden_layers", 4},
              {"num_attention_heads", 4}, {"num_key_value_heads", 4},
              {"n_routed_experts", 16}, {"num_experts_per_tok", 4}, {"n_group", 4}, {"topk_group", 2},
              {"moe_intermediate_size", 32}, {"n_shared_experts", 2}, {"routed_scaling_factor", 2.5},
              {"first_k_dense_replace", 1}};
  out.update(changes);
  return out;
}

json phimoe(const json& rope) {
  json out = glm({{"architectures", {"PhiMoEForCausalLM"}}, {"model_type", "phimoe"}, {"head_dim", 8}, {"num_experts_per_tok", 2}, {"n_group", 1}, {"topk_group", 1}, {"rope_scaling", rope}});
  return out;
}

std::string error_of(const json& config) {
  const auto parsed = parse_config_json(config.dump());
  return parsed.ok() ? "" : parsed.status().message();
}

TEST(MoeConfig, GlmTellsItsRouterEverything) {
  const auto config = parse_config_json(glm().dump());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->shared_expert_intermediate_size, 64);
  EXPECT_EQ(config->first_k_dense_replace, 1);
  EXPECT_EQ(config->rope.partial_rotary_factor, 0.5);
  const auto traits = family_traits(*config);
  ASSERT_TRUE(traits.ok()) << traits.status().message();
  const RouterRule& rule = decoder_spec(*config, *traits).router;
  EXPECT_EQ(rule.num_experts, 16);
  EXPECT_EQ(rule.k, 4);
  EXPECT_EQ(rule.score, RouterScore::sigmoid);
  EXPECT_EQ(rule.groups, 4);
  EXPECT_EQ(rule.kept_groups, 2);
  EXPECT_EQ(rule.group_score, GroupScore::best_two);
  EXPECT_FLOAT_EQ(rule.scale, 2.5f);
  EXPECT_TRUE(rule.renormalise);
}

TEST(MoeConfig, RulesThatCannotBeFollowedNameTheirKey) {
  EXPECT_NE(error_of(glm({{"n_group", 3}})).find("n_group"), std::string::npos);
  EXPECT_NE(error_of(glm({{"topk_group", 5}})).find("topk_group"), std::string::npos);
  EXPECT_NE(error_of(glm({{"num_experts_per_tok", 9}})).find("topk_group"), std::string::npos);
  EXPECT_NE(error_of(glm({{"num_experts_per_tok", 17}})).find("num_experts_per_tok"), std::string::npos);
  EXPECT_NE(error_of(glm({{"n_routed_experts", 2048}})).find("n_routed_experts"), std::string::npos);
  EXPECT_NE(error_of(glm({{"scoring_func", "softmax"}})).find("scoring_func"), std::string::npos);
  EXPECT_NE(error_of(glm({{"clip_qkv", 8.0}})).find("clip_qkv"), std::string::npos);
  EXPECT_NE(error_of(glm({{"model_type", "qwen2_moe"}})).find("shared_expert_intermediate_size"), std::string::npos);
  EXPECT_NE(error_of(glm({{"n_routed_experts", nullptr}})).find("n_routed_experts is missing"), std::string::npos);
  EXPECT_NE(error_of(glm({{"n_routed_experts", 0}})).find("n_routed_experts is missing or 0"), std::string::npos);
  EXPECT_NE(error_of(glm({{"quantization_config", "fp8"}})).find("quantization_config"), std::string::npos);
  EXPECT_NE(error_of(glm({{"rope_scaling", "yarn"}})).find("rope_scaling must be an object"), std::string::npos);
  json three = phimoe(nullptr);
  three["num_experts_per_tok"] = 3;
  EXPECT_NE(error_of(three).find("num_experts_per_tok must be 2"), std::string::npos) << error_of(three);
  // Groups of one expert have no best two, which only the family knows.
  const auto config = parse_config_json(glm({{"n_group", 16}, {"topk_group", 8}}).dump());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_FALSE(family_traits(*config).ok());
}

// Latent attention's heads do not share out the rows' width: 65 / 5 says nothing.
TEST(MoeConfig, LatentHeadsHaveNumbersOfTheirOwn) {
  const json latent = {{"architectures", {"DeepseekV3ForCausalLM"}}, {"model_type", "deepseek_v3"}, {"hidden_size", 65}, {"num_attention_heads", 5}, {"num_key_value_heads", 5}, {"kv_lora_rank", 32}, {"qk_nope_head_dim", 15}, {"qk_rope_head_dim", 6}, {"v_head_dim", 7}};
  const auto config = parse_config_json(glm(latent).dump());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->head_dim, 38);
}

TEST(MoeConfig, LongropeTakesOneSetOfFactorsForTheContextServed) {
  const json rope = {{"type", "longrope"}, {"short_factor", {1, 1, 2, 2}}, {"long_factor", {4, 4, 8, 8}},
                     {"short_mscale", 1.1}, {"long_mscale", 1.3}, {"original_max_position_embeddings", 512}};
  const auto config = parse_config_json(phimoe(rope).dump());
  ASSERT_TRUE(config.ok()) << config.status().message();
  const RopeFrequencies near = rope_frequencies(config->rope, 8, 2048, 512);
  const RopeFrequencies far = rope_frequencies(config->rope, 8, 2048, 513);
  EXPECT_DOUBLE_EQ(near.attention_factor, 1.1);
  EXPECT_DOUBLE_EQ(far.attention_factor, 1.3);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(near.inv_freq[i], 4 * far.inv_freq[i], 1e-12);

  for (const json& broken : {json{{"long_factor", {4, 4, 8}}}, json{{"short_factor", {1, 1, 2, "x"}}},
                             json{{"short_factor", {1, 1, 2, 0}}}, json{{"long_factor", json::array()}}}) {
    json changed = rope;
    changed.update(broken);
    EXPECT_NE(error_of(phimoe(changed)).find("_factor"), std::string::npos) << broken.dump();
  }
  json wrong = rope;
  wrong["short_factor"] = wrong["long_factor"] = {1, 2};
  EXPECT_NE(error_of(phimoe(wrong)).find("4 values"), std::string::npos) << error_of(phimoe(wrong));
  wrong = rope;
  wrong.erase("original_max_position_embeddings");
  EXPECT_NE(error_of(phimoe(wrong)).find("original_max_position_embeddings"), std::string::npos);
}

// Mixtral says of a window nothing else than its size.
TEST(MoeConfig, AWindowHidesInAllLayersUnlessItHoldsTheContext) {
  json mixtral = glm({{"architectures", {"MixtralForCausalLM"}},
                      {"model_type", "mixtral"},
                      {"n_group", 1},
                      {"topk_group", 1},
                      {"max_position_embeddings", 4096},
                      {"sliding_window", 1024}});
  auto config = parse_config_json(mixtral.dump());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->sliding_layers, std::vector<bool>(4, true));
  mixtral["sliding_window"] = 4096;
  config = parse_config_json(mixtral.dump());
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->sliding_window, 0);
  EXPECT_TRUE(config->sliding_layers.empty());
}

// Said before weights are read, and by explain.
TEST(MoeConfig, WhatTheGpusKernelsCannotHoldIsRefused) {
  const auto refusal = [](const json& changes) {
    const auto config = parse_config_json(glm(changes).dump());
    EXPECT_TRUE(config.ok()) << config.status().message();
    return config.ok() ? check_gpu_model(*config).message() : "";
  };
  EXPECT_EQ(refusal(json::object()), "");
  EXPECT_NE(refusal({{"n_routed_experts", 1024}}).find("up to 512 experts"), std::string::npos);
  EXPECT_NE(refusal({{"n_routed_experts", 64}, {"num_experts_per_tok", 33}, {"topk_group", 4}}).find("32 of a token"),
            std::string::npos);
  EXPECT_NE(refusal({{"n_routed_experts", 128}, {"n_group", 64}, {"topk_group", 16}}).find("32 groups"),
            std::string::npos);
  EXPECT_NE(refusal({{"head_dim", 514}}).find("head dim up to 512"), std::string::npos);
}

TEST(MoeConfig, TheGpuTakesWidthsThatAreNoMultiplesOfEight) {
  for (const json& changes : {json{{"moe_intermediate_size", 37}}, {{"intermediate_size", 133}}, {{"hidden_size", 50}}}) {
    const auto config = parse_config_json(glm(changes).dump());
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(check_gpu_model(*config).message(), "") << changes;
  }
}

json qwen3_next(const json& changes = json::object()) {
  json out = {{"architectures", {"Qwen3NextForCausalLM"}}, {"model_type", "qwen3_next"}, {"vocab_size", 100},
              {"hidden_size", 64}, {"intermediate_size", 128}, {"num_hidden_layers", 8},
              {"num_attention_heads", 4}, {"num_key_value_heads", 4},
              {"head_dim", 64}, {"num_experts", 16}, {"num_experts_per_tok", 4}, {"moe_intermediate_size", 32},
              {"linear_num_key_heads", 2}, {"linear_num_value_heads", 4}, {"linear_key_head_dim", 32},
              {"linear_value_head_dim", 16}};
  out.update(changes);
  return out;
}

TEST(HybridConfig, EveryFourthLayerHasFullAttentionUnlessTypesSayOtherwise) {
  auto config = parse_config_json(qwen3_next().dump());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->recurrent_layers, (std::vector<bool>{true, true, true, false, true, true, true, false}));
  EXPECT_EQ(config->num_kv_layers(), 2);
  EXPECT_EQ(config->rope.partial_rotary_factor, 0.25);
  EXPECT_TRUE(config->norm_topk_prob);
  EXPECT_EQ(config->linear->conv_width, 4);
  json types = json::array({"full_attention"});
  for (int i = 1; i < 8; ++i) types.push_back("linear_attention");
  config = parse_config_json(qwen3_next({{"layer_types", types}}).dump());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->num_recurrent_layers(), 7);
  const auto traits = family_traits(*config);
  ASSERT_TRUE(traits.ok()) << traits.status().message();
  EXPECT_EQ(traits->layers[0].mixer, MixerKind::attention);
  EXPECT_EQ(traits->layers[7].mixer, MixerKind::gated_delta_net);
  EXPECT_TRUE(decoder_spec(*config, *traits).attention.output_gate);
  EXPECT_TRUE(check_gpu_model(*config).ok());
}

TEST(HybridConfig, LayersThatNoKernelRunsNameTheirKey) {
  const auto names = [](const json& changes, const char* key) {
    return error_of(qwen3_next(changes)).find(key) != std::string::npos;
  };
  EXPECT_TRUE(names({{"linear_num_key_heads", 3}}, "linear_num_key_heads"));
  EXPECT_TRUE(names({{"linear_key_head_dim", 24}}, "linear_key_head_dim"));
  EXPECT_TRUE(names({{"linear_value_head_dim", 512}}, "linear_value_head_dim"));
  EXPECT_TRUE(names({{"linear_conv_kernel_dim", 9}}, "linear_conv_kernel_dim"));
  EXPECT_TRUE(names({{"linear_num_value_heads", nullptr}}, "linear_num_value_heads"));
  EXPECT_TRUE(names({{"full_attention_interval", 9}}, "full_attention_interval"));
  EXPECT_TRUE(names({{"full_attention_interval", 0}}, "full_attention_interval"));
  EXPECT_TRUE(names({{"layer_types", {"linear_attention"}}}, "layer_types"));
}

// With LFM2-1.2B's numbers.
json lfm2(const json& changes = json::object()) {
  json out = {{"architectures", {"Lfm2ForCausalLM"}},
              {"model_type", "lfm2"},
              {"vocab_size", 65536},
              {"hidden_size", 2048},
              {"block_ff_dim", 12288},
              {"block_auto_adjust_ff_dim", true},
              {"block_ffn_dim_multiplier", 1.0},
              {"block_multiple_of", 256},
              {"num_hidden_layers", 16},
              {"num_attention_heads", 32},
              {"num_key_value_heads", 8},
              {"norm_eps", 1e-5},
              {"conv_L_cache", 3},
              {"conv_bias", false},
              {"full_attn_idxs", {2, 5, 8, 10, 12, 14}}};
  out.update(changes);
  return out;
}

TEST(HybridConfig, Lfm2SaysWhichLayersAreConvolutions) {
  const auto config = parse_config_json(lfm2().dump());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->intermediate_size, 8192);  // two thirds
  EXPECT_EQ(config->norm_eps, 1e-5);
  EXPECT_EQ(config->rope.theta, 1e6);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->num_recurrent_layers(), 10);
  EXPECT_EQ(config->num_kv_layers(), 6);
  const auto traits = family_traits(*config);
  ASSERT_TRUE(traits.ok()) << traits.status().message();
  EXPECT_EQ(traits->layers[1].mixer, MixerKind::short_conv);
  EXPECT_EQ(traits->layers[2].mixer, MixerKind::attention);
  EXPECT_TRUE(check_gpu_model(*config).ok());
  const auto rounded = parse_config_json(lfm2({{"block_ff_dim", 10000}, {"block_ffn_dim_multiplier", 1.1}}).dump());
  ASSERT_TRUE(rounded.ok()) << rounded.status().message();
  EXPECT_EQ(rounded->intermediate_size, 7424);  // 7332, rounded up
  const auto whole = parse_config_json(lfm2({{"block_auto_adjust_ff_dim", false}, {"tie_embedding", false}}).dump());
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  EXPECT_EQ(whole->intermediate_size, 12288);
  EXPECT_FALSE(whole->tie_word_embeddings);
}

// Nothing then keeps a state.
TEST(HybridConfig, AttentionInEveryLayerIsNoHybrid) {
  json config = lfm2();
  config["layer_types"] = std::vector<std::string>(config["num_hidden_layers"].get<int>(), "full_attention");
  const auto parsed = parse_config_json(config.dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_FALSE(parsed->has_recurrent_layers());
  EXPECT_TRUE(parsed->recurrent_layers.empty());
}

TEST(HybridConfig, Lfm2sBrokenKeysAreNamed) {
  const auto names = [](const json& changes, const char* key) {
    return error_of(lfm2(changes)).find(key) != std::string::npos;
  };
  EXPECT_TRUE(names({{"conv_L_cache", 9}}, "conv_L_cache"));
  EXPECT_TRUE(names({{"full_attn_idxs", {16}}}, "full_attn_idxs"));
  EXPECT_TRUE(names({{"full_attn_idxs", json::array()}}, "full_attn_idxs"));
  EXPECT_TRUE(names({{"full_attn_idxs", nullptr}}, "layer_types"));
  EXPECT_TRUE(names({{"layer_types", std::vector<std::string>(16, "conv")}}, "layer_types"));
  EXPECT_TRUE(names({{"layer_types", std::vector<std::string>(16, "mamba")}}, "layer_types"));
  EXPECT_TRUE(names({{"block_ffn_dim_multiplier", 1e-3}, {"block_ff_dim", 1}}, "block_ffn_dim_multiplier"));
  EXPECT_TRUE(names({{"hidden_size", 2056}}, "hidden_size"));
}

json kimi_linear(const json& changes = json::object()) {
  json out = {{"architectures", {"KimiLinearForCausalLM"}},
              {"model_type", "kimi_linear"},
              {"vocab_size", 100},
              {"hidden_size", 64},
              {"intermediate_size", 128},
              {"num_hidden_layers", 5},
              {"num_attention_heads", 4},
              {"model_max_length", 4096},
              {"kv_lora_rank", 32},
              {"q_lora_rank", nullptr},
              {"qk_nope_head_dim", 16},
              {"qk_rope_head_dim", 8},
              {"v_head_dim", 16},
              {"num_experts", 16},
              {"num_experts_per_token", 4},
              {"moe_intermediate_size", 32},
              {"num_shared_experts", 2},
              {"first_k_dense_replace", 1},
              {"rope_theta", 10000.0},
              {"linear_attn_config",
               {{"kda_layers", {1, 2, 3, 5}}, {"full_attn_layers", {4}}, {"head_dim", 32}, {"num_heads", 4}}}};
  out.update(changes);
  return out;
}

TEST(HybridConfig, KimiLinearIsReadAsPublishedAndAsSaved) {
  const auto published = parse_config_json(kimi_linear().dump());
  json section = kimi_linear();
  section.erase("linear_attn_config");
  section.erase("first_k_dense_replace");
  section.update({{"layer_types",
                   {"linear_attention", "linear_attention", "linear_attention", "full_attention", "linear_attention"}},
                  {"mlp_layer_types", {"dense", "sparse", "sparse", "sparse", "sparse"}},
                  {"linear_head_dim", 32},
                  {"linear_num_heads", 4}});
  const auto saved = parse_config_json(section.dump());
  for (const auto* config : {&published, &saved}) {
    ASSERT_TRUE(config->ok()) << config->status().message();
    EXPECT_EQ((*config)->recurrent_layers, (std::vector<bool>{true, true, true, false, true}));
    EXPECT_TRUE((*config)->linear->channel_decay);
    EXPECT_EQ((*config)->linear->conv_width, 4);
    EXPECT_EQ((*config)->max_position_embeddings, 4096);
    EXPECT_EQ((*config)->rope.type, RopeConfig::Type::none);
    EXPECT_EQ((*config)->experts_per_token, 4);
    EXPECT_EQ((*config)->shared_expert_intermediate_size, 64);
    EXPECT_TRUE((*config)->norm_topk_prob);
    const auto traits = family_traits(**config);
    ASSERT_TRUE(traits.ok()) << traits.status().message();
    EXPECT_EQ(traits->layers[3].mixer, MixerKind::latent);
    EXPECT_EQ(traits->layers[4].mixer, MixerKind::gated_delta_net);
    EXPECT_EQ(traits->layers[0].feed_forward, FeedForwardKind::dense);
    EXPECT_EQ(traits->layers[1].feed_forward, FeedForwardKind::experts);
    EXPECT_EQ(traits->router.score, RouterScore::sigmoid);
    EXPECT_TRUE(check_gpu_model(**config).ok());
  }
}

TEST(HybridConfig, KimiLinearsBrokenKeysAreNamed) {
  const auto names = [](const json& changes, const char* key) {
    return error_of(kimi_linear(changes)).find(key) != std::string::npos;
  };
  const auto layers = [](const json& kda, const json& full, int head_dim = 32) {
    return json{{"linear_attn_config",
                 {{"kda_layers", kda}, {"full_attn_layers", full}, {"head_dim", head_dim}, {"num_heads", 4}}}};
  };
  EXPECT_TRUE(names(layers({1, 2, 3}, {4}), "linear_attn_config"));
  EXPECT_TRUE(names(layers({1, 2, 3, 4}, {4, 5}), "linear_attn_config"));
  EXPECT_TRUE(names(layers({0, 1, 2, 3, 5}, {4}), "linear_attn_config"));
  EXPECT_TRUE(names(layers({1, 2, 3, 4, 5}, json::array()), "linear_attn_config"));
  EXPECT_TRUE(names(layers("all", {4}), "kda_layers"));
  EXPECT_TRUE(names(layers({1, 2, 3, 5}, {4}, 24), "head_dim"));
  EXPECT_TRUE(names({{"linear_attn_config", 3}}, "linear_attn_config"));
  EXPECT_TRUE(
      names({{"linear_attn_config", nullptr}, {"linear_num_heads", 4}, {"linear_head_dim", 32}}, "layer_types"));
  EXPECT_TRUE(names({{"kv_lora_rank", nullptr}}, "kv_lora_rank"));
  EXPECT_TRUE(names({{"mla_use_nope", false}}, "mla_use_nope"));
  EXPECT_TRUE(names({{"moe_router_activation_func", "softmax"}}, "moe_router_activation_func"));
  EXPECT_TRUE(names({{"num_experts_per_token", 17}}, "num_experts_per_token"));
  EXPECT_TRUE(names({{"mlp_layer_types", {"dense"}}}, "mlp_layer_types"));
}

// With Jet-Nemotron-2B's numbers.
json jet_nemotron(const json& jet = json::object(), const json& changes = json::object()) {
  json section = {{"mode", "chunk"}, {"num_heads", 12}, {"head_dim", 96}, {"expand_v", 2.6666666667}, {"conv_size", 4},
                  {"norm_eps", "1e-5"}, {"dconv_generator_reduction", 8}};
  section.update(jet);
  json out = {{"architectures", {"JetNemotronForCausalLM"}},
              {"model_type", "jet_nemotron"},
              {"vocab_size", 100},
              {"hidden_size", 1536},
              {"intermediate_size", 8960},
              {"num_hidden_layers", 4},
              {"num_attention_heads", 12},
              {"num_key_value_heads", 2},
              {"max_position_embeddings", 131072},
              {"layer_types", {"jet", "attn", "swa", "jet"}},
              {"efficient_attention_config", {{"jet", section}, {"swa", {{"window_size", 1152}}}}}};
  out.update(changes);
  return out;
}

TEST(HybridConfig, JetNemotronHasLayersOfThreeKinds) {
  const auto config = parse_config_json(jet_nemotron().dump());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->recurrent_layers, (std::vector<bool>{true, false, false, true}));
  EXPECT_EQ(config->sliding_layers, (std::vector<bool>{false, false, true, false}));
  EXPECT_EQ(config->sliding_window, 1152);
  EXPECT_EQ(config->linear->v_dim, 256);
  EXPECT_EQ(config->linear->generator_rank, 384);
  EXPECT_EQ(config->linear->norm_eps, 1e-5);
  EXPECT_EQ(config->rope.theta, 1e6);
  EXPECT_TRUE(config->tie_word_embeddings);
  const auto traits = family_traits(*config);
  ASSERT_TRUE(traits.ok()) << traits.status().message();
  EXPECT_EQ(traits->layers[0].mixer, MixerKind::gated_delta_net);
  EXPECT_EQ(traits->layers[2].window_left, 1151);
  EXPECT_TRUE(check_gpu_model(*config).ok());
}

TEST(HybridConfig, JetNemotronsBrokenKeysAreNamed) {
  const auto names = [](const json& jet, const json& changes, const char* key) {
    return error_of(jet_nemotron(jet, changes)).find(key) != std::string::npos;
  };
  EXPECT_TRUE(names({{"head_dim", 100}}, json::object(), "head_dim"));
  EXPECT_TRUE(names({{"expand_v", 2.7}}, json::object(), "expand_v"));
  EXPECT_TRUE(names({{"conv_size", 9}}, json::object(), "conv_size"));
  EXPECT_TRUE(names({{"norm_eps", "small"}}, json::object(), "norm_eps"));
  EXPECT_TRUE(names({{"dconv_generator_reduction", 4000}}, json::object(), "dconv_generator_reduction"));
  EXPECT_TRUE(names(json::object(), {{"efficient_attention_config", nullptr}}, "efficient_attention_config"));
  EXPECT_TRUE(names(json::object(), {{"layer_types", {"jet", "attn", "mamba", "jet"}}}, "layer_types"));
  EXPECT_TRUE(names(json::object(), {{"layer_types", {"jet", "jet", "jet", "jet"}}}, "layer_types"));
}

}  // namespace
}  // namespace warpweave
