// What one model family adds to the common decoder, as data. A family is one file here with one
// function ModelConfig -> FamilyTraits, and one line in registry.cc. What each layer is made of follows from the
// configuration alone (layer_plan.h).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/layer_plan.h"
#include "ops/compute_types.h"
#include "ops/router_rule.h"

namespace warpweave {

// What the tensors of an expert layer are called: "<block>.<router>.weight", "<block>.experts.3.<gate>.weight",
// "<block>.<shared>.gate_proj.weight", "<block>.<shared>_gate.weight", "<block>.<correction>".
struct ExpertNames {
  const char* block = "mlp";
  const char* router = "gate";
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
  const char* shared = "shared_experts";
  const char* correction = "gate.e_score_correction_bias";  // of the choice, whole
};

// What the norms of a layer are called; an empty name: there is none. in: of the rows that a branch reads, out: of what
// it adds to them, after: of the rows then (a layer norm).
struct NormNames {
  const char* mixer_in = "input_layernorm";
  const char* mixer_out = "";
  const char* feed_forward_in = "post_attention_layernorm";
  const char* feed_forward_out = "";
  const char* mixer_after = "";
  const char* feed_forward_after = "";
};

// Tensors of attention under "self_attn.". qkv: one that holds q, k and v, in place of q_proj, k_proj and v_proj.
struct AttentionNames {
  const char* qkv = "";
  const char* q_norm = "q_norm";
  const char* k_norm = "k_norm";
  const char* o = "o_proj";
};

// Tensors of a dense feed-forward under "<block>.". gate the same as up: one holds both, gate's rows first; gate empty:
// it has none, and up's result itself passes the activation.
struct MlpNames {
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
  const char* block = "mlp";
};

// A draft head's parts beside its layers (model/draft_head.h). Of a name the norm's weight is "<name>.weight"; empty:
// there is none.
struct DraftHeadTraits {
  int fc_inputs = 2;                  // rows of hidden_size side by side that fc makes one of
  const char* embedding_norm = "";    // of the next token's embedding
  const char* hidden_norm = "";       // of the hidden state, before fc
  const char* final_norm = "";        // of what logits are made of
  bool own_head = false;              // lm_head, over its own tokens
  bool reads_embedding = false;       // its attention reads the normed embedding and the normed row side by side
};

struct FamilyTraits {
  bool qkv_bias = false;
  bool o_bias = false;
  bool latent_bias = false;           // on what projects to the ranks of latent attention
  bool mlp_bias = false;
  bool qk_norm = false;               // RMS norm per head on q and k, before rope
  bool wide_qk_norm = false;          // with qk_norm: over all heads together
  bool qk_norm_after_rope = false;    // with qk_norm
  bool rope_interleaved = false;      // the rotation pairs 2i with 2i + 1
  bool attention_gate = false;        // q_proj gives each head a gate beside its query (AttentionSpec::output_gate)
  bool layer_norm = false;            // layer norms with a bias in place of RMS norms
  bool sinks = false;
  bool first_mixer_norm = true;       // false: layer 0 attends to the rows as they are
  bool final_norm = true;             // false: the last layer's norm is the last
  const char* final_norm_name = "model.norm";
  bool layers_only = false;  // a draft head: embedding, and where it has none of its own final norm and head, are
                             // another model's
  DraftHeadTraits draft;              // with layers_only
  NormNames norms;
  AttentionNames attention_names;
  MlpNames mlp_names;
  bool fused_experts = false;         // gpt-oss: one transposed tensor for all experts
  bool stacked_experts =
      false;  // Qwen3.5: where experts have no tensors of their own, one holds all, gate's rows before up's
  bool shared_expert_gate = false;    // the shared experts' result times a sigmoid
  bool split_linear_input = false;    // a gated delta net has tensors of q k v, z, b and a, in place of qkvz and ba
  bool joined_gates = false;          // with split_linear_input: b and a are one, by k head
  ExpertNames expert_names;
  float norm_weight_offset = 0;
  float embedding_scale = 1;
  float attention_scale = 0;          // 0: 1/sqrt(head_dim)
  GluActivation activation = GluActivation::silu;
  RouterRule router;                  // of router_rule(), for families with experts
  std::vector<LayerPlan> layers;      // of transformer_layers(), which family_traits() asks
};

struct Family {
  std::string_view architecture;      // as in config.json
  FamilyTraits (*traits)(const ModelConfig& config);
};

// Norms of what the branches add alone, called as OLMo 2's are.
inline constexpr NormNames kNormsAfter = {"", "post_attention_layernorm", "", "post_feedforward_layernorm"};

// BERT's norms of the rows after each branch.
inline constexpr NormNames kNormsOfRows = {"", "", "", "", "post_attention_layernorm", "post_feedforward_layernorm"};

// `unsupported`, listing what is supported, for an unknown architecture.
Result<Family> find_family(std::string_view architecture);

// The softmax over all experts that `config` gives numbers for, renormalised where it says so.
RouterRule router_rule(const ModelConfig& config);

FamilyTraits llama_traits(const ModelConfig& config);
FamilyTraits mistral_traits(const ModelConfig& config);
FamilyTraits qwen2_traits(const ModelConfig& config);
FamilyTraits qwen3_traits(const ModelConfig& config);
FamilyTraits qwen3_moe_traits(const ModelConfig& config);
FamilyTraits qwen3_next_traits(const ModelConfig& config);
FamilyTraits qwen3_5_traits(const ModelConfig& config);
FamilyTraits kimi_linear_traits(const ModelConfig& config);
FamilyTraits jet_nemotron_traits(const ModelConfig& config);
FamilyTraits lfm2_traits(const ModelConfig& config);
FamilyTraits gemma2_traits(const ModelConfig& config);
FamilyTraits gemma3_traits(const ModelConfig& config);
FamilyTraits gpt_oss_traits(const ModelConfig& config);
FamilyTraits mixtral_traits(const ModelConfig& config);
FamilyTraits qwen2_moe_traits(const ModelConfig& config);
FamilyTraits glm4_moe_traits(const ModelConfig& config);
FamilyTraits olmoe_traits(const ModelConfig& config);
FamilyTraits phimoe_traits(const ModelConfig& config);
FamilyTraits phi3_traits(const ModelConfig& config);
FamilyTraits olmo2_traits(const ModelConfig& config);
FamilyTraits granite_traits(const ModelConfig& config);
FamilyTraits cohere2_traits(const ModelConfig& config);
FamilyTraits gemma_traits(const ModelConfig& config);
FamilyTraits glm4_traits(const ModelConfig& config);
FamilyTraits stablelm_traits(const ModelConfig& config);
FamilyTraits starcoder2_traits(const ModelConfig& config);
FamilyTraits exaone4_traits(const ModelConfig& config);
FamilyTraits ernie4_5_traits(const ModelConfig& config);
FamilyTraits hunyuan_traits(const ModelConfig& config);
FamilyTraits seed_oss_traits(const ModelConfig& config);
FamilyTraits bert_traits(const ModelConfig& config);
FamilyTraits modernbert_traits(const ModelConfig& config);
FamilyTraits deepseek_v2_traits(const ModelConfig& config);
FamilyTraits deepseek_v3_traits(const ModelConfig& config);

}  // namespace warpweave
