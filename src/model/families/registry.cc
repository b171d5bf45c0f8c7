#include <string>

#include "model/families/family.h"

namespace warpweave {
namespace {

constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", llama_traits},       {"MistralForCausalLM", mistral_traits},
    {"Qwen2ForCausalLM", qwen2_traits},       {"Qwen3ForCausalLM", qwen3_traits},
    {"Qwen3MoeForCausalLM", qwen3_moe_traits}, {"Gemma2ForCausalLM", gemma2_traits},
    {"Gemma3ForCausalLM", gemma3_traits},     {"GptOssForCausalLM", gpt_oss_traits},
    {"MixtralForCausalLM", mixtral_traits},   {"Qwen2MoeForCausalLM", qwen2_moe_traits},
    {"Glm4MoeForCausalLM", glm4_moe_traits},  {"OlmoeForCausalLM", olmoe_traits},
    {"Qwen3NextForCausalLM", qwen3_next_traits},
    {"Qwen3_5ForCausalLM", qwen3_5_traits},   {"Qwen3_5ForConditionalGeneration", qwen3_5_traits},
    {"Qwen3_5MoeForCausalLM", qwen3_5_traits}, {"Qwen3_5MoeForConditionalGeneration", qwen3_5_traits},
    {"KimiLinearForCausalLM", kimi_linear_traits}, {"JetNemotronForCausalLM", jet_nemotron_traits},
    {"Lfm2ForCausalLM", lfm2_traits},         {"Lfm2MoeForCausalLM", lfm2_traits},
    {"PhimoeForCausalLM", phimoe_traits},     {"PhiMoEForCausalLM", phimoe_traits},
    {"Phi3ForCausalLM", phi3_traits},         {"Olmo2ForCausalLM", olmo2_traits},
    {"Olmo3ForCausalLM", olmo2_traits},       {"GraniteForCausalLM", granite_traits},
    {"Cohere2ForCausalLM", cohere2_traits}, {"GemmaForCausalLM", gemma_traits},
    {"Glm4ForCausalLM", glm4_traits},         {"SmolLM3ForCausalLM", llama_traits},
    {"StableLmForCausalLM", stablelm_traits}, {"Starcoder2ForCausalLM", starcoder2_traits},
    {"Exaone4ForCausalLM", exaone4_traits},   {"Ernie4_5ForCausalLM", ernie4_5_traits},
    {"HunYuanDenseV1ForCausalLM", hunyuan_traits}, {"SeedOssForCausalLM", seed_oss_traits},
    {"DeepseekV2ForCausalLM", deepseek_v2_traits}, {"DeepseekV3ForCausalLM", deepseek_v3_traits},
    {"BertModel", bert_traits},               {"RobertaModel", bert_traits},
    {"ModernBertModel", modernbert_traits},
};

}  // namespace

RouterRule router_rule(const ModelConfig& config) {
  return {.num_experts = config.num_experts, .k = config.experts_per_token, .renormalise = config.norm_topk_prob};
}

Result<Family> find_family(std::string_view architecture) {
  const std::string decoder = declared_model(architecture).decoder;
  std::string supported;
  for (const Family& family : kFamilies) {
    if (family.architecture == decoder) return family;
    supported += (supported.empty() ? "" : ", ") + std::string(family.architecture);
  }
  return Status::unsupported("config.json: the architecture '" + std::string(architecture.substr(0, 80)) +
                             "' is not supported; supported are " + supported, "architectures");
}

}  // namespace warpweave
