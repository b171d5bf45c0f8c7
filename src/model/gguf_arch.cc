#include "model/gguf_arch.h"

#include <span>
#include <utility>

namespace warpweave {
namespace {

constexpr GgufArch kArchs[] = {
    {.name = "llama", .model_type = "llama", .architecture = "LlamaForCausalLM", .permuted_qk = true},
    {.name = "qwen2", .model_type = "qwen2", .architecture = "Qwen2ForCausalLM"},
    {.name = "qwen3", .model_type = "qwen3", .architecture = "Qwen3ForCausalLM"},
    {.name = "qwen3moe", .model_type = "qwen3_moe", .architecture = "Qwen3MoeForCausalLM"},
    {.name = "qwen2moe",
     .model_type = "qwen2_moe",
     .architecture = "Qwen2MoeForCausalLM",
     .experts_renormalised = false},
    {.name = "olmoe", .model_type = "olmoe", .architecture = "OlmoeForCausalLM", .experts_renormalised = false},
    {.name = "glm4moe",
     .model_type = "glm4_moe",
     .architecture = "Glm4MoeForCausalLM",
     .nextn = true,
     .post_attention_norm = true},
    {.name = "deepseek2",
     .model_type = "deepseek_v2",
     .architecture = "DeepseekV2ForCausalLM",
     .latent = true,
     .experts_renormalised = false,
     .nextn = true},
    {.name = "qwen3next",
     .model_type = "qwen3_next",
     .architecture = "Qwen3NextForCausalLM",
     .norms_plus_one = true,
     .delta_net = true,
     .nextn = true,
     .post_attention_norm = true},
    {.name = "qwen35",
     .model_type = "qwen3_5_text",
     .architecture = "Qwen3_5ForCausalLM",
     .norms_plus_one = true,
     .delta_net = true,
     .tiled_v_heads = true,
     .nextn = true,
     .post_attention_norm = true},
    {.name = "qwen35moe",
     .model_type = "qwen3_5_moe_text",
     .architecture = "Qwen3_5MoeForCausalLM",
     .norms_plus_one = true,
     .delta_net = true,
     .tiled_v_heads = true,
     .nextn = true,
     .post_attention_norm = true},
    {.name = "kimi-linear", .model_type = "kimi_linear", .architecture = "KimiLinearForCausalLM", .latent = true},
    {.name = "phimoe", .model_type = "phimoe", .architecture = "PhimoeForCausalLM"},
    {.name = "gemma", .model_type = "gemma", .architecture = "GemmaForCausalLM", .norms_plus_one = true, .gelu = true},
    {.name = "gemma2",
     .model_type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .norms_plus_one = true,
     .gelu = true,
     .post_attention_norm = true,
     .window_pattern = 2},
    {.name = "gemma3",
     .model_type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .norms_plus_one = true,
     .gelu = true,
     .post_attention_norm = true,
     .window_pattern = 6},
    {.name = "phi3", .model_type = "phi3", .architecture = "Phi3ForCausalLM"},
    {.name = "olmo2",
     .model_type = "olmo2",
     .architecture = "Olmo2ForCausalLM",
     .post_attention_norm = true,
     .window_pattern = 4},
    {.name = "granite", .model_type = "granite", .architecture = "GraniteForCausalLM", .permuted_qk = true},
    {.name = "cohere2", .model_type = "cohere2", .architecture = "Cohere2ForCausalLM", .window_pattern = 4},
    {.name = "glm4", .model_type = "glm4", .architecture = "Glm4ForCausalLM"},
    {.name = "smollm3", .model_type = "smollm3", .architecture = "SmolLM3ForCausalLM", .permuted_qk = true},
    {.name = "stablelm", .model_type = "stablelm", .architecture = "StableLmForCausalLM"},
    {.name = "starcoder2", .model_type = "starcoder2", .architecture = "Starcoder2ForCausalLM", .gelu = true},
    {.name = "exaone4",
     .model_type = "exaone4",
     .architecture = "Exaone4ForCausalLM",
     .post_attention_norm = true,
     .window_pattern = 4},
    {.name = "ernie4_5", .model_type = "ernie4_5", .architecture = "Ernie4_5ForCausalLM"},
    {.name = "hunyuan-dense", .model_type = "hunyuan_v1_dense", .architecture = "HunYuanDenseV1ForCausalLM"},
    {.name = "lfm2", .model_type = "lfm2", .architecture = "Lfm2ForCausalLM"},
    {.name = "lfm2moe", .model_type = "lfm2_moe", .architecture = "Lfm2MoeForCausalLM"},
    {.name = "seed_oss", .model_type = "seed_oss", .architecture = "SeedOssForCausalLM", .post_attention_norm = true},
};

// What a layer's tensors are called here and there, but for ".weight" and ".bias".
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"input_layernorm", "attn_norm"},       {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},         {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"}, {"post_mlp_layernorm", "post_ffw_norm"},
    {"post_self_attn_layernorm", "post_attention_norm"},
    {"self_attn.qkv_proj", "attn_qkv"},     {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.c_fc", "ffn_up"},                 {"mlp.c_proj", "ffn_down"},
    {"self_attn.query_layernorm", "attn_q_norm"}, {"self_attn.key_layernorm", "attn_k_norm"},
    {"mlp.gate_proj", "ffn_gate"},          {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},          {"mlp.gate", "ffn_gate_inp"},
    {"block_sparse_moe.w1", "ffn_gate"},    {"block_sparse_moe.w3", "ffn_up"},
    {"block_sparse_moe.w2", "ffn_down"},    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"}, {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},     {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"}, {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"self_attn.q_a_proj", "attn_q_a"},     {"self_attn.q_a_layernorm", "attn_q_a_norm"},
    {"self_attn.q_b_proj", "attn_q_b"},     {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_b_proj", "attn_kv_b"},   {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    {"self_attn.k_b_proj", "attn_k_b"},     {"self_attn.v_b_proj", "attn_v_b"},
    {"self_attn.q_conv1d", "ssm_conv1d_q"}, {"self_attn.k_conv1d", "ssm_conv1d_k"},
    {"self_attn.v_conv1d", "ssm_conv1d_v"}, {"self_attn.b_proj", "ssm_beta"},
    {"self_attn.f_a_proj", "ssm_f_a"},      {"self_attn.f_b_proj", "ssm_f_b"},
    {"self_attn.g_a_proj", "ssm_g_a"},      {"self_attn.g_b_proj", "ssm_g_b"},
    {"self_attn.o_norm", "ssm_norm"},
    {"block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp"},
    {"block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp"},
    {"operator_norm", "attn_norm"},         {"ffn_norm", "ffn_norm"},
    {"self_attn.out_proj", "attn_output"},  {"self_attn.q_layernorm", "attn_q_norm"},
    {"self_attn.k_layernorm", "attn_k_norm"}, {"feed_forward.w1", "ffn_gate"},
    {"feed_forward.w3", "ffn_up"},          {"feed_forward.w2", "ffn_down"},
    {"feed_forward.gate", "ffn_gate_inp"},  {"conv.conv", "shortconv.conv"},
    {"conv.in_proj", "shortconv.in_proj"},  {"conv.out_proj", "shortconv.out_proj"},
};

using NamePair = std::pair<std::string_view, std::string_view>;
constexpr NamePair kDeltaNetNames[] = {
    {"linear_attn.in_proj_qkv", "attn_qkv"},
    {"linear_attn.in_proj_z", "attn_gate"},
    {"linear_attn.in_proj_qkvz", "ssm_in"},
    {"linear_attn.in_proj_ba", "ssm_ba"},
    {"linear_attn.in_proj_b", "ssm_beta"},
    {"linear_attn.in_proj_a", "ssm_alpha"},
    {"linear_attn.conv1d", "ssm_conv1d"},
    {"linear_attn.norm", "ssm_norm"},
    {"linear_attn.out_proj", "ssm_out"},
};

// Of a layer that predicts further tokens (model/draft_head.h), beside those that it shares with the model's own.
constexpr NamePair kNextnNames[] = {
    {"eh_proj", "nextn.eh_proj"},
    {"enorm", "nextn.enorm"},
    {"hnorm", "nextn.hnorm"},
    {"shared_head.norm", "nextn.shared_head_norm"},
};

constexpr NamePair kWholeNames[] = {
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"feed_forward.expert_bias", "exp_probs_b.bias"},
    {"self_attn.A_log", "ssm_a"},
    {"self_attn.dt_bias", "ssm_dt.bias"},
    {"linear_attn.A_log", "ssm_a"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
};

}  // namespace

Result<GgufArch> find_gguf_arch(std::string_view name) {
  std::string supported;
  for (const GgufArch& known : kArchs) {
    if (name == known.name) return known;
    supported += (supported.empty() ? "" : ", ") + std::string(known.name);
  }
  return Status::unsupported("the architecture '" + std::string(name.substr(0, 40)) +
                             "' is not supported; supported in GGUF files are " + supported);
}

std::string gguf_nextn_archs() {
  std::string names;
  for (const GgufArch& known : kArchs) {
    if (known.nextn) names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  return names;
}

std::string gguf_name(std::string_view name, const GgufArch& arch) {
  if (name == "model.embed_tokens.weight") return "token_embd.weight";
  if (name.starts_with("model.norm.")) return "output_norm." + std::string(name.substr(11));
  if (name == "model.embedding_norm.weight") return "token_embd_norm.weight";
  if (name.starts_with("lm_head.")) return "output." + std::string(name.substr(8));
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return {};
  name.remove_prefix(kPrefix.size());
  const size_t dot = name.find('.');
  if (dot == name.npos) return {};
  const std::string layer(name.substr(0, dot));
  const std::string_view rest = name.substr(dot + 1);
  const size_t suffix = rest.rfind('.');
  const std::string_view stem = rest.substr(0, suffix), kind = rest.substr(suffix);
  if (stem == "post_attention_layernorm") {
    return "blk." + layer + (arch.post_attention_norm ? ".post_attention_norm" : ".ffn_norm") + std::string(kind);
  }
  for (const auto& [from, to] : kWholeNames) {
    if (rest == from) return "blk." + layer + "." + std::string(to);
  }
  using Names = std::span<const NamePair>;
  for (const Names names : {Names(kNames), Names(kDeltaNetNames), arch.nextn ? Names(kNextnNames) : Names()}) {
    for (const auto& [from, to] : names) {
      if (stem == from) return "blk." + layer + "." + std::string(to) + std::string(kind);
    }
  }
  return {};
}

}  // namespace warpweave
