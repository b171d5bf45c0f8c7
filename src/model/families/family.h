// What one model family adds to the common decoder, as data. A family is one file here with one
// function ModelConfig -> FamilyTraits, and one line in registry.cc. A family whose layers are not all of one kind
// has a second function, ModelConfig -> what each layer is made of.
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
// "<block>.<shared>.gate_proj.weight", "<block>.<shared>_gate.weight".
struct ExpertNames {
  const char* block = "mlp";
  const char* router = "gate";
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
  const char* shared = "shared_experts";
};

struct FamilyTraits {
  bool qkv_bias = false;
  bool o_bias = false;
  bool latent_bias = false;           // on what projects to the ranks of latent attention
  bool mlp_bias = false;
  bool qk_norm = false;               // RMS norm per head on q and k, before rope
  bool wide_qk_norm = false;          // with qk_norm: over all heads together
  bool attention_gate = false;        // q_proj gives each head a gate beside its query (AttentionSpec::output_gate)
  bool layer_norm = false;            // layer norms with a bias in place of RMS norms
  bool sinks = false;
  bool branch_norms = false;          // Gemma: a norm on each branch before it joins the residual
  bool fused_experts = false;         // gpt-oss: one transposed tensor for all experts
  bool shared_expert_gate = false;    // the shared experts' result times a sigmoid
  ExpertNames expert_names;
  float norm_weight_offset = 0;
  float embedding_scale = 1;
  float attention_scale = 0;          // 0: 1/sqrt(head_dim)
  GluActivation activation = GluActivation::silu;
  RouterRule router;                  // of router_rule(), for families with experts
  std::vector<LayerPlan> layers;      // of Family::layers(), which family_traits() asks
};

struct Family {
  std::string_view architecture;      // as in config.json
  FamilyTraits (*traits)(const ModelConfig& config);
  std::vector<LayerPlan> (*layers)(const ModelConfig& config) = transformer_layers;
};

std::span<const Family> all_families();
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
FamilyTraits gemma2_traits(const ModelConfig& config);
FamilyTraits gemma3_traits(const ModelConfig& config);
FamilyTraits gpt_oss_traits(const ModelConfig& config);
FamilyTraits mixtral_traits(const ModelConfig& config);
FamilyTraits qwen2_moe_traits(const ModelConfig& config);
FamilyTraits glm4_moe_traits(const ModelConfig& config);
FamilyTraits olmoe_traits(const ModelConfig& config);
FamilyTraits phimoe_traits(const ModelConfig& config);
FamilyTraits deepseek_v2_traits(const ModelConfig& config);
FamilyTraits deepseek_v3_traits(const ModelConfig& config);

}  // namespace warpweave
