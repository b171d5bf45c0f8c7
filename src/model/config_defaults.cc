#include "model/config_defaults.h"

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/json_file.h"

namespace warpweave {
namespace {

struct FamilyDefaults {
  std::string_view model_type;
  std::string_view keys;
};

// Written by tools/make_config_defaults.py, of transformers 5.24.
constexpr FamilyDefaults kDefaults[] = {
    {"cohere2",
     R"({"attention_bias":false, "hidden_act":"silu", "layer_norm_eps":1e-05, "logit_scale":0.0625, )"
     R"("max_position_embeddings":8192, "sliding_window":4096, "tie_word_embeddings":true, )"
     R"("default_rope_theta":10000.0} )"},
    {"deepseek_v2",
     R"({"attention_bias":false, "first_k_dense_replace":0, "hidden_act":"silu", "kv_lora_rank":512, )"
     R"("max_position_embeddings":2048, "mlp_bias":false, "n_shared_experts":2, "norm_topk_prob":false, )"
     R"("q_lora_rank":1536, "qk_nope_head_dim":128, "qk_rope_head_dim":64, "rms_norm_eps":1e-06, )"
     R"("routed_scaling_factor":1.0, "tie_word_embeddings":false, "topk_method":"greedy", "v_head_dim":128, )"
     R"("default_rope_theta":10000.0} )"},
    {"deepseek_v3",
     R"({"attention_bias":false, "first_k_dense_replace":3, "hidden_act":"silu", "kv_lora_rank":512, )"
     R"("max_position_embeddings":4096, "n_group":8, "n_shared_experts":1, "norm_topk_prob":true, )"
     R"("num_experts_per_tok":8, "q_lora_rank":1536, "qk_nope_head_dim":128, "qk_rope_head_dim":64, )"
     R"("rms_norm_eps":1e-06, "rope_interleave":true, "routed_scaling_factor":2.5, "tie_word_embeddings":false, )"
     R"("topk_group":4, "v_head_dim":128, "default_rope_theta":10000.0} )"},
    {"ernie4_5",
     R"({"head_dim":128, "hidden_act":"silu", "max_position_embeddings":131072, "num_key_value_heads":2, )"
     R"("rms_norm_eps":1e-05, "tie_word_embeddings":true, "use_bias":false, "default_rope_theta":500000.0} )"},
    {"exaone4",
     R"({"hidden_act":"silu", "max_position_embeddings":2048, "num_key_value_heads":32, "rms_norm_eps":1e-05, )"
     R"("sliding_window":4096, "sliding_window_pattern":4, "tie_word_embeddings":false, )"
     R"("default_rope_theta":10000.0} )"},
    {"gemma",
     R"({"attention_bias":false, "head_dim":256, "hidden_act":"gelu_pytorch_tanh", )"
     R"("max_position_embeddings":8192, "num_key_value_heads":16, "rms_norm_eps":1e-06, )"
     R"("tie_word_embeddings":true, "default_rope_theta":10000.0} )"},
    {"gemma2",
     R"({"attention_bias":false, "attn_logit_softcapping":50.0, "final_logit_softcapping":30.0, "head_dim":256, )"
     R"("hidden_activation":"gelu_pytorch_tanh", "max_position_embeddings":8192, "num_key_value_heads":4, )"
     R"("query_pre_attn_scalar":256, "rms_norm_eps":1e-06, "sliding_window":4096, "tie_word_embeddings":true, )"
     R"("default_rope_theta":10000.0} )"},
    {"gemma3_text",
     R"({"attention_bias":false, "head_dim":256, "hidden_activation":"gelu_pytorch_tanh", )"
     R"("max_position_embeddings":131072, "num_key_value_heads":4, "query_pre_attn_scalar":256, )"
     R"("rms_norm_eps":1e-06, "sliding_window":4096, "tie_word_embeddings":true, )"
     R"("use_bidirectional_attention":false, "rope_local_base_freq":10000.0, "default_rope_theta":1000000.0} )"},
    {"glm4",
     R"({"attention_bias":true, "head_dim":128, "hidden_act":"silu", "max_position_embeddings":131072, )"
     R"("num_key_value_heads":2, "rms_norm_eps":1.5625e-07, "tie_word_embeddings":false, )"
     R"("default_rope_theta":10000.0} )"},
    {"glm4_moe",
     R"({"attention_bias":false, "first_k_dense_replace":1, "hidden_act":"silu", )"
     R"("max_position_embeddings":131072, "n_group":1, "n_shared_experts":1, "norm_topk_prob":true, )"
     R"("num_experts_per_tok":8, "num_key_value_heads":8, "rms_norm_eps":1e-05, "routed_scaling_factor":1.0, )"
     R"("tie_word_embeddings":false, "topk_group":1, "use_qk_norm":false, "default_rope_theta":10000.0} )"},
    {"gpt_oss",
     R"({"attention_bias":true, "head_dim":64, "hidden_act":"silu", "max_position_embeddings":131072, )"
     R"("num_experts_per_tok":4, "num_key_value_heads":8, "rms_norm_eps":1e-05, "sliding_window":128, )"
     R"("swiglu_alpha":1.702, "swiglu_limit":7.0, "tie_word_embeddings":false, "default_rope_theta":150000.0} )"},
    {"granite",
     R"({"attention_bias":false, "attention_multiplier":1.0, "embedding_multiplier":1.0, "hidden_act":"silu", )"
     R"("logits_scaling":1.0, "max_position_embeddings":2048, "mlp_bias":false, "residual_multiplier":1.0, )"
     R"("rms_norm_eps":1e-06, "tie_word_embeddings":false, "default_rope_theta":10000.0} )"},
    {"hunyuan_v1_dense",
     R"({"attention_bias":false, "hidden_act":"silu", "max_position_embeddings":2048, "rms_norm_eps":1e-05, )"
     R"("tie_word_embeddings":false, "default_rope_theta":10000.0} )"},
    {"lfm2",
     R"({"block_auto_adjust_ff_dim":true, "block_ffn_dim_multiplier":1.0, "block_multiple_of":256, )"
     R"("conv_L_cache":3, "conv_bias":false, "max_position_embeddings":128000, "norm_eps":1e-05, )"
     R"("num_key_value_heads":8, "tie_word_embeddings":true, "default_rope_theta":1000000.0} )"},
    {"lfm2_moe",
     R"({"conv_L_cache":3, "conv_bias":false, "max_position_embeddings":128000, "norm_eps":1e-05, )"
     R"("norm_topk_prob":true, "num_dense_layers":2, "num_experts_per_tok":4, "num_key_value_heads":8, )"
     R"("routed_scaling_factor":1.0, "tie_word_embeddings":true, "default_rope_theta":1000000.0} )"},
    {"llama",
     R"({"attention_bias":false, "hidden_act":"silu", "max_position_embeddings":2048, "mlp_bias":false, )"
     R"("rms_norm_eps":1e-06, "tie_word_embeddings":false, "default_rope_theta":10000.0} )"},
    {"mistral",
     R"({"hidden_act":"silu", "max_position_embeddings":131072, "num_key_value_heads":8, "rms_norm_eps":1e-06, )"
     R"("sliding_window":4096, "tie_word_embeddings":false, "default_rope_theta":10000.0} )"},
    {"mixtral",
     R"({"hidden_act":"silu", "max_position_embeddings":131072, "num_experts_per_tok":2, )"
     R"("num_key_value_heads":8, "rms_norm_eps":1e-05, "router_jitter_noise":0.0, "tie_word_embeddings":false, )"
     R"("default_rope_theta":1000000.0} )"},
    {"olmo2",
     R"({"attention_bias":false, "hidden_act":"silu", "max_position_embeddings":2048, "rms_norm_eps":1e-05, )"
     R"("tie_word_embeddings":false, "default_rope_theta":10000.0} )"},
    {"olmo3",
     R"({"attention_bias":false, "hidden_act":"silu", "max_position_embeddings":2048, "rms_norm_eps":1e-05, )"
     R"("sliding_window":4096, "tie_word_embeddings":false, "default_rope_theta":500000.0} )"},
    {"olmoe",
     R"({"attention_bias":false, "hidden_act":"silu", "max_position_embeddings":4096, "norm_topk_prob":false, )"
     R"("num_experts_per_tok":8, "rms_norm_eps":1e-05, "tie_word_embeddings":false, )"
     R"("default_rope_theta":10000.0} )"},
    {"phi3",
     R"({"hidden_act":"silu", "max_position_embeddings":4096, "rms_norm_eps":1e-05, "tie_word_embeddings":false, )"
     R"("default_rope_theta":10000.0} )"},
    {"phimoe",
     R"({"attention_bias":false, "hidden_act":"silu", "lm_head_bias":false, "max_position_embeddings":131072, )"
     R"("num_experts_per_tok":2, "num_key_value_heads":8, "rms_norm_eps":1e-05, "router_jitter_noise":0.01, )"
     R"("tie_word_embeddings":false, "default_rope_theta":1000000.0} )"},
    {"qwen2",
     R"({"hidden_act":"silu", "max_position_embeddings":32768, "max_window_layers":28, "num_key_value_heads":32, )"
     R"("rms_norm_eps":1e-06, "sliding_window":4096, "tie_word_embeddings":false, "use_sliding_window":false, )"
     R"("default_rope_theta":10000.0} )"},
    {"qwen2_moe",
     R"({"decoder_sparse_step":1, "hidden_act":"silu", "max_position_embeddings":32768, "max_window_layers":28, )"
     R"("norm_topk_prob":false, "num_experts_per_tok":4, "num_key_value_heads":16, "qkv_bias":true, )"
     R"("rms_norm_eps":1e-06, "sliding_window":4096, "tie_word_embeddings":false, "use_sliding_window":false, )"
     R"("default_rope_theta":10000.0} )"},
    {"qwen3",
     R"({"attention_bias":false, "head_dim":128, "hidden_act":"silu", "max_position_embeddings":32768, )"
     R"("max_window_layers":28, "num_key_value_heads":32, "rms_norm_eps":1e-06, "sliding_window":4096, )"
     R"("tie_word_embeddings":false, "use_sliding_window":false, "default_rope_theta":10000.0} )"},
    {"qwen3_5_moe_text",
     R"({"attention_bias":false, "head_dim":256, "hidden_act":"silu", "linear_conv_kernel_dim":4, )"
     R"("linear_key_head_dim":128, "linear_num_key_heads":16, "linear_num_value_heads":32, )"
     R"("linear_value_head_dim":128, "max_position_embeddings":32768, "num_experts_per_tok":8, )"
     R"("num_key_value_heads":2, "rms_norm_eps":1e-06, "tie_word_embeddings":false, )"
     R"("default_rope_theta":10000.0} )"},
    {"qwen3_5_text",
     R"({"attention_bias":false, "head_dim":256, "hidden_act":"silu", "linear_conv_kernel_dim":4, )"
     R"("linear_key_head_dim":128, "linear_num_key_heads":16, "linear_num_value_heads":32, )"
     R"("linear_value_head_dim":128, "max_position_embeddings":32768, "num_key_value_heads":4, )"
     R"("rms_norm_eps":1e-06, "tie_word_embeddings":false, "default_rope_theta":10000.0} )"},
    {"qwen3_moe",
     R"({"attention_bias":false, "decoder_sparse_step":1, "hidden_act":"silu", "max_position_embeddings":32768, )"
     R"("norm_topk_prob":false, "num_experts_per_tok":8, "num_key_value_heads":4, "rms_norm_eps":1e-06, )"
     R"("sliding_window":4096, "tie_word_embeddings":false, "use_sliding_window":false, )"
     R"("default_rope_theta":10000.0} )"},
    {"qwen3_next",
     R"({"attention_bias":false, "decoder_sparse_step":1, "head_dim":256, "hidden_act":"silu", )"
     R"("linear_conv_kernel_dim":4, "linear_key_head_dim":128, "linear_num_key_heads":16, )"
     R"("linear_num_value_heads":32, "linear_value_head_dim":128, "max_position_embeddings":32768, )"
     R"("norm_topk_prob":true, "num_experts_per_tok":10, "num_key_value_heads":2, "rms_norm_eps":1e-06, )"
     R"("tie_word_embeddings":false, "default_rope_theta":10000.0} )"},
    {"seed_oss",
     R"({"attention_bias":true, "attention_out_bias":false, "head_dim":128, "hidden_act":"silu", )"
     R"("max_position_embeddings":524288, "mlp_bias":false, "num_key_value_heads":8, "rms_norm_eps":1e-06, )"
     R"("tie_word_embeddings":false, "default_rope_theta":10000.0} )"},
    {"smollm3",
     R"({"attention_bias":false, "hidden_act":"silu", "max_position_embeddings":32768, "mlp_bias":false, )"
     R"("no_rope_layer_interval":4, "num_key_value_heads":4, "rms_norm_eps":1e-06, "tie_word_embeddings":true, )"
     R"("use_sliding_window":false, "default_rope_theta":2000000.0} )"},
    {"stablelm",
     R"({"hidden_act":"silu", "layer_norm_eps":1e-05, "max_position_embeddings":4096, "num_key_value_heads":32, )"
     R"("qk_layernorm":false, "tie_word_embeddings":false, "use_parallel_residual":false, "use_qkv_bias":false, )"
     R"("default_rope_theta":10000.0} )"},
    {"starcoder2",
     R"({"hidden_act":"gelu_pytorch_tanh", "max_position_embeddings":4096, "norm_epsilon":1e-05, )"
     R"("num_key_value_heads":2, "tie_word_embeddings":true, "use_bias":true, "default_rope_theta":10000.0} )"},
};

}  // namespace

void add_config_defaults(nlohmann::json& config) {
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) return;
  for (const FamilyDefaults& family : kDefaults) {
    if (family.model_type != type->get_ref<const std::string&>()) continue;
    const Result<nlohmann::json> defaults = read_json<nlohmann::json>(family.keys, {"a table of defaults"});
    if (!defaults.ok()) std::abort();  // text of this file
    for (const auto& [key, value] : defaults->items()) {
      if (!config.contains(key)) config[key] = value;
    }
  }
}

}  // namespace warpweave
