#include "model/config.h"

#include <map>
#include <nlohmann/json.hpp>

#include "base/json_file.h"
#include "model/config_defaults.h"
#include "model/config_draft.h"
#include "model/config_encoder.h"
#include "model/config_hybrid.h"
#include "model/config_reader.h"
#include "model/config_rope.h"
#include "ops/router_rule.h"

namespace warpweave {
namespace {

using nlohmann::json;

constexpr int kMaxDim = 1 << 24;

Result<json> parse_object(std::string_view text, const char* file) {
  constexpr size_t kMaxConfigBytes = 16 << 20;
  if (text.size() > kMaxConfigBytes) {
    return Status::data_loss(std::string(file) + " is larger than 16 MiB", file);
  }
  WW_ASSIGN_OR_RETURN(json parsed, read_json<json>(text, {file, StatusCode::data_loss, file}));
  if (!parsed.is_object()) return Status::data_loss(std::string(file) + " is not a JSON object", file);
  return parsed;
}

void read_layer_types(ConfigReader& config, ModelConfig& out) {
  const json* types = config.find("layer_types");
  if (types == nullptr) return;
  if (!types->is_array() || static_cast<int>(types->size()) != out.num_layers) {
    return config.fail("layer_types", "must list one type per layer");
  }
  out.sliding_layers.clear();
  for (size_t i = 0; i < types->size(); ++i) {
    const json& type = (*types)[i];
    const bool recurrent =
        !out.recurrent_layers.empty() && out.recurrent_layers[i];  // read_recurrent_layers() has read it
    if (type != "full_attention" && type != "sliding_attention" && !recurrent) {
      return config.fail("layer_types", "may hold full_attention and sliding_attention here");
    }
    out.sliding_layers.push_back(type == "sliding_attention");
  }
}

// One layer in so many sees everything; 0: none does. nullopt: the family has another rule.
std::optional<int> usual_window_pattern(const std::string& model_type) {
  static const std::map<std::string, int> kPatterns = {
      {"mistral", 0}, {"mixtral", 0}, {"phimoe", 0}, {"phi3", 0}, {"starcoder2", 0}, {"gpt_oss", 2}, {"gemma2", 2},
      {"gemma3_text", 6}, {"gemma3", 6}, {"olmo3", 4}, {"cohere2", 4}, {"exaone4", 4}};
  const auto it = kPatterns.find(model_type);
  return it == kPatterns.end() ? std::nullopt : std::optional(it->second);
}

// Which layers slide, for files without layer_types.
void read_window(ConfigReader& config, ModelConfig& out) {
  if (is_jet_nemotron(out.model_type)) return drop_idle_window(out);  // read_recurrent_layers() has read it
  out.sliding_window = config.integer("sliding_window", 0, 0, 1 << 28);
  const std::string& type = out.model_type;
  if (out.sliding_window > 0) {
    out.sliding_layers.assign(out.num_layers, false);
    if (config.has("layer_types")) {
      // read_layer_types() says which
    } else if (const std::optional<int> usual = usual_window_pattern(type)) {
      const int pattern = config.integer("sliding_window_pattern",
                                         config.integer("_sliding_window_pattern", *usual, 0, 1 << 20), 0, 1 << 20);
      for (int i = 0; i < out.num_layers; ++i) {
        out.sliding_layers[i] = pattern == 0 || (i + 1) % pattern != 0;
      }
    } else if (config.boolean("use_sliding_window", false)) {  // Qwen: the upper layers, of Qwen3-MoE all
      const int first = type == "qwen3_moe" ? 0 : config.integer("max_window_layers", out.num_layers, 0, 1 << 20);
      for (int i = first; i < out.num_layers; ++i) out.sliding_layers[i] = true;
    }
  }
  read_layer_types(config, out);
  read_nope_layers(config, out);
  drop_idle_window(out);
}

// The experts that every token passes: one of a width of its own (Qwen2-MoE), or some as wide as the others.
int read_shared_experts(ConfigReader& config, const ModelConfig& model) {
  const int width = config.integer("shared_expert_intermediate_size", 0, 0, kMaxDim);
  if (width == 0 && model.model_type == "qwen2_moe") {
    config.fail("shared_expert_intermediate_size", "is missing or 0: every Qwen2-MoE layer has a shared expert");
  }
  if (width > 0) return width;
  const char* const key = is_kimi_linear(model.model_type) ? "num_shared_experts" : "n_shared_experts";
  const int count = config.integer(key, model.model_type == "glm4_moe" ? 1 : 0, 0, 1024);
  if (int64_t{count} * model.moe_intermediate_size > kMaxDim) {
    config.fail(key, "times moe_intermediate_size must be at most " + std::to_string(kMaxDim));
    return 0;
  }
  return count * model.moe_intermediate_size;
}

// Router scores: of DeepSeek V3 and GLM-4 sigmoids by default, of V2 the softmax.
void read_scoring(ConfigReader& config, ModelConfig& out) {
  const bool glm = out.model_type == "glm4_moe", v2 = out.architecture == "DeepseekV2ForCausalLM";
  if (is_kimi_linear(out.model_type) && config.text("moe_router_activation_func", "sigmoid") != "sigmoid") {
    config.fail("moe_router_activation_func", "must be sigmoid");
  }
  const std::string score = config.text("scoring_func", v2 ? "softmax" : "sigmoid");
  if (score != "sigmoid" && (glm || score != "softmax")) {
    config.fail("scoring_func", glm ? "must be sigmoid for glm4_moe" : "must be softmax or sigmoid");
  }
  out.sigmoid_scores = score == "sigmoid";
}

void read_expert_groups(ConfigReader& config, ModelConfig& out) {
  const std::string method = config.text("topk_method", "");
  if (method == "greedy") return;  // over all experts, whatever the groups
  if (!method.empty() && method != "group_limited_greedy" && method != "noaux_tc") {
    return config.fail("topk_method", "must be greedy, group_limited_greedy or noaux_tc");
  }
  const char* const groups = is_kimi_linear(out.model_type) ? "num_expert_group" : "n_group";
  out.n_group = config.integer(groups, 1, 1, kMaxExperts);
  out.topk_group = config.integer("topk_group", out.n_group, 1, kMaxExperts);
  if (out.num_experts % out.n_group != 0) {
    return config.fail(groups, "must divide the number of experts, " + std::to_string(out.num_experts));
  }
  if (out.topk_group > out.n_group) return config.fail("topk_group", "must be at most n_group");
  if (out.topk_group * (out.num_experts / out.n_group) < out.experts_per_token) {
    config.fail("topk_group", "groups hold fewer experts than num_experts_per_tok");
  }
}

// How transformers saves which of Kimi Linear's layers are dense.
void read_mlp_layer_types(ConfigReader& config, ModelConfig& out) {
  const json* types = config.find("mlp_layer_types");
  if (types == nullptr) return;
  if (!types->is_array() || static_cast<int>(types->size()) != out.num_layers) {
    return config.fail("mlp_layer_types", "must list one type per layer");
  }
  for (int i = 0; i < out.num_layers; ++i) {
    const json& type = (*types)[i];
    if (type != "dense" && type != "sparse") return config.fail("mlp_layer_types", "may hold dense and sparse");
    if (type == "dense") out.mlp_only_layers.push_back(i);
  }
}

// Families whose layers have experts say how many.
void check_dense(ConfigReader& config, const ModelConfig& model) {
  const std::string& type = model.model_type;
  const char* key = nullptr;
  if (type == "mixtral" || type == "phimoe" || type == "gpt_oss") key = "num_local_experts";
  if (type == "olmoe" || type == "qwen2_moe" || type == "qwen3_moe") key = "num_experts";
  if (type == "glm4_moe") key = "n_routed_experts";
  if (key != nullptr) config.fail(key, "is missing or 0: a " + type + " model has experts");
}

void read_moe(ConfigReader& config, ModelConfig& out) {
  for (const char* key : {"n_routed_experts", "num_local_experts", "num_experts"}) {
    out.num_experts = config.integer(key, out.num_experts, 0, kMaxExperts);
  }
  if (out.num_experts == 0) return check_dense(config, out);
  const bool glm = out.model_type == "glm4_moe";
  const bool kimi = is_kimi_linear(out.model_type);  // has names of its own
  const char* const per_token = kimi ? "num_experts_per_token" : "num_experts_per_tok";
  out.experts_per_token = config.integer(per_token, 1, 1, kMaxExpertsPerToken);
  if (out.experts_per_token > out.num_experts) config.fail(per_token, "must be at most num_experts");
  if (out.model_type == "phimoe" && out.experts_per_token != 2) {
    config.fail(per_token, "must be 2: SparseMixer, the router of Phi-MoE, chooses two experts a token");
  }
  out.moe_intermediate_size = config.integer("moe_intermediate_size", out.intermediate_size, 1, kMaxDim);
  const bool normed = glm || out.architecture == "DeepseekV3ForCausalLM" || is_gated_hybrid(out.model_type) ||
                      is_lfm2(out.model_type) || kimi;
  out.norm_topk_prob = config.boolean(kimi ? "moe_renormalize" : "norm_topk_prob", normed);
  out.routed_scaling_factor = config.number("routed_scaling_factor", 1, -1e6, 1e6);
  out.router_jitter_noise = config.number("router_jitter_noise", 0.01, 0, 1e6);
  read_scoring(config, out);
  read_expert_groups(config, out);
  out.shared_expert_intermediate_size = read_shared_experts(config, out);
  const bool lfm2 = is_lfm2(out.model_type);
  out.first_k_dense_replace =
      config.integer(lfm2 ? "num_dense_layers" : "first_k_dense_replace", lfm2 ? 2 : 0, 0, 1 << 20);
  if (kimi) read_mlp_layer_types(config, out);
  out.moe_layer_freq = config.integer("moe_layer_freq", 1, 1, 1 << 20);
  out.decoder_sparse_step = config.integer("decoder_sparse_step", 1, 1, 1 << 20);
  for (int32_t layer : config.token_ids("mlp_only_layers")) out.mlp_only_layers.push_back(layer);
}

void read_dual_chunk(ConfigReader& config, ModelConfig& out) {
  const char* const key = "dual_chunk_attention_config";
  const json* section = config.find(key);
  if (section == nullptr) return;
  if (!section->is_object()) return config.fail(key, "must be an object");
  ConfigReader dual(*section, std::string("config.json: ") + key);
  DualChunkConfig& read = out.dual_chunk.emplace();
  read.chunk_size = dual.integer("chunk_size", 8192, 2, 1 << 28);
  read.local_size = dual.integer("local_size", 1024, 0, 1 << 28);
  read.original_max_positions = dual.integer("original_max_position_embeddings", 0, 0, 1 << 28);
  if (read.local_size >= read.chunk_size) dual.fail("local_size", "must be smaller than chunk_size");
  if (dual.boolean("sparse_attention_enabled", dual.has("sparse_attention_config"))) {
    dual.fail("sparse_attention_enabled", "asks for vertical and slash sparse attention, which is not "
                                          "supported; set it to false to attend to all tokens");
  }
  if (!dual.status().ok()) config.fail(dual.status());
}

double read_norm_eps(ConfigReader& config) {
  for (const char* key : {"norm_eps", "rms_norm_eps", "layer_norm_eps", "norm_epsilon"}) {
    if (config.has(key)) return config.number(key, 1e-6, kNormEpsRange);
  }
  return 1e-6;
}

// use_bias (StarCoder2, Ernie) is for every GEMM, use_qkv_bias (StableLM) and qkv_bias (Qwen2-MoE) for q, k and v.
void read_biases(ConfigReader& config, ModelConfig& out) {
  const bool all = config.boolean("use_bias", false);
  const bool some = config.boolean("use_qkv_bias", config.boolean("qkv_bias", all));
  out.attention_bias = config.boolean("attention_bias", some);
  out.attention_out_bias = config.boolean("attention_out_bias", false);
  out.mlp_bias = config.boolean("mlp_bias", all);
}

// The numbers of gpt-oss's activation, which kernels have as constants (GluActivation::swiglu_oai).
void check_swiglu(ConfigReader& config) {
  constexpr std::pair<const char*, double> kNumbers[] = {{"swiglu_alpha", 1.702}, {"swiglu_limit", 7.0}};
  for (const auto& [key, value] : kNumbers) {
    if (config.number(key, value, -1e6, 1e6) != value) {
      config.fail(key, fmt::format("must be {:g}: the activation of the experts is computed with no other", value));
    }
  }
}

void read_multipliers(ConfigReader& config, ModelConfig& out) {
  if (out.model_type == "granite") {
    out.attention_multiplier = config.number("attention_multiplier", 1, kMultiplierRange);
    out.embedding_multiplier = config.number("embedding_multiplier", 1, kMultiplierRange);
    out.residual_multiplier = config.number("residual_multiplier", 1, kMultiplierRange);
    out.logit_scale = 1 / config.number("logits_scaling", 1, kMultiplierRange);
  } else if (out.model_type == "cohere2") {
    out.logit_scale = config.number("logit_scale", 0.0625, kMultiplierRange);
  }
}

void read_shape(ConfigReader& config, ModelConfig& out) {
  out.vocab_size = config.required_integer("vocab_size", 1, 1 << 24);
  out.hidden_size = config.required_integer("hidden_size", 1, kMaxDim);
  const bool experts_alone = out.model_type == "qwen3_5_moe_text";  // no layer is dense
  const char* const width = config.has("block_ff_dim") ? "block_ff_dim" : "intermediate_size";
  out.intermediate_size =
      experts_alone ? config.integer(width, 1, 1, kMaxDim) : config.required_integer(width, 1, kMaxDim);
  if (out.model_type == "lfm2") out.intermediate_size = adjusted_intermediate_size(config, out.intermediate_size);
  out.num_layers = config.required_integer("num_hidden_layers", 1, 4096);
  out.num_q_heads = config.required_integer("num_attention_heads", 1, 65536);
  out.num_kv_heads = config.integer("num_key_value_heads", out.num_q_heads, 1, 65536);
  out.head_dim = config.integer("head_dim", std::max(1, out.hidden_size / out.num_q_heads), 1, 4096);
  if (out.num_q_heads % out.num_kv_heads != 0) {
    config.fail("num_key_value_heads", "must divide num_attention_heads");
  }
  const bool latent = config.has("kv_lora_rank");  // its heads have numbers of their own
  if (out.head_dim % 2 != 0 && !latent) config.fail("head_dim", "must be even");
  const char* const positions = is_kimi_linear(out.model_type) ? "model_max_length" : "max_position_embeddings";
  out.max_position_embeddings = config.integer(positions, 2048, 1, 1 << 28);
  out.norm_eps = read_norm_eps(config);
  out.hidden_act = config.text("hidden_act", config.text("hidden_activation", "silu"));
  if (config.has("hidden_activation")) out.hidden_act = config.text("hidden_activation", "silu");
  out.tie_word_embeddings = config.boolean("tie_word_embeddings", is_jet_nemotron(out.model_type));
  if (is_lfm2(out.model_type)) out.tie_word_embeddings = config.boolean("tie_embedding", out.tie_word_embeddings);
  read_biases(config, out);
  out.lm_head_bias = config.boolean("lm_head_bias", false);
  out.use_qk_norm = config.boolean("use_qk_norm", false);
  out.parallel_residual = out.model_type == "cohere2" ||
                          (out.model_type == "stablelm" && config.boolean("use_parallel_residual", false));
  if (config.boolean("qk_layernorm", false)) {
    config.fail("qk_layernorm", "is not supported: q and k get no layer norms here; only models with false run");
  }
  if (config.has("clip_qkv")) {
    config.fail("clip_qkv", "is not supported: q, k and v are not clipped here; only models with null run");
  }
  out.attention_softcap = config.number("attn_logit_softcapping", 0, kSoftcapRange);
  if (out.model_type == "gemma3_text") out.attention_softcap = 0;  // a key of Gemma 2's that its attention leaves alone
  out.final_softcap = config.number("final_logit_softcapping", 0, kSoftcapRange);
  out.query_pre_attn_scalar = config.number("query_pre_attn_scalar", 0, kSoftcapRange);
  if (out.model_type == "gpt_oss") check_swiglu(config);
  read_multipliers(config, out);
  read_dual_chunk(config, out);
}

// Multi-head latent attention: what the cache holds takes the place of the heads' own numbers.
void read_latent(ConfigReader& config, ModelConfig& out) {
  if (!config.has("kv_lora_rank")) return;
  constexpr int kMaxHead = 4096;
  LatentConfig& latent = out.latent.emplace();
  latent.q_rank = config.integer("q_lora_rank", 0, 1, kMaxDim);
  latent.kv_rank = config.integer("kv_lora_rank", 1, 1, kMaxHead);
  latent.nope_dim = config.required_integer("qk_nope_head_dim", 1, kMaxHead);
  latent.rope_dim = config.required_integer("qk_rope_head_dim", 2, kMaxHead);
  latent.v_dim = config.required_integer("v_head_dim", 1, kMaxHead);
  latent.rope_interleaved = config.boolean("rope_interleave", true);
  if (latent.rope_dim % 2 != 0) config.fail("qk_rope_head_dim", "must be even");
  out.num_kv_heads = 1;
  out.head_dim = latent.token_dim();
}

// The block size of a compressed-tensors section whose weights are all 8-bit floats ({0, 0}: scales of
// tensors or rows), or nullopt: something else is in it.
std::optional<Fp8Config> compressed_fp8(const json& section) {
  const json groups = section.value("config_groups", json::object());
  if (!groups.is_object() || groups.empty()) return std::nullopt;
  Fp8Config out;
  for (const json& group : groups) {
    const json weights = group.is_object() && group.contains("weights") ? group["weights"] : json();
    if (!weights.is_object() || weights.value("num_bits", json()) != 8 || weights.value("type", json()) != "float") {
      return std::nullopt;
    }
    const json block = weights.value("block_structure", json());
    if (block.is_array() && block.size() == 2 && block[0] == 128 && block[1] == 128) {
      out = {128, 128};
    } else if (!block.is_null()) {
      return std::nullopt;
    }
  }
  return out;
}

void read_quantization(const json& object, ConfigReader& config, ModelConfig& out) {
  if (!object.contains("quantization_config") || object["quantization_config"].is_null()) return;
  if (!object["quantization_config"].is_object()) return config.fail("quantization_config", "must be an object");
  const json& section = object["quantization_config"];
  ConfigReader quantization(section, "config.json: quantization_config");
  out.quant_method = quantization.text("quant_method", "");
  if (out.quant_method == "compressed-tensors") {
    if (const std::optional<Fp8Config> fp8 = compressed_fp8(section)) {
      out.quant_method = "fp8";
      out.fp8 = *fp8;
    }
  }
  if (const json* block = quantization.find("weight_block_size"); block != nullptr && out.quant_method == "fp8") {
    const auto valid = [](const json& size) {
      return size.is_number_integer() && size.get<double>() >= 1 && size.get<double>() <= 65536;
    };
    if (!block->is_array() || block->size() != 2 || !valid((*block)[0]) || !valid((*block)[1])) {
      quantization.fail("weight_block_size", "must be two sizes from 1 to 65536, e.g. [128, 128]");
    } else {
      out.fp8 = {(*block)[0].get<int>(), (*block)[1].get<int>()};
    }
  }
  if (!quantization.status().ok()) config.fail(quantization.status());
}

// transformers leaves id2label out where there are two.
void read_labels(const json& object, ConfigReader& config, ModelConfig& out) {
  constexpr int kDefaultLabels = 2, kMaxLabels = 1 << 16;
  const json names = object.value("id2label", json::object());
  if (!names.is_object() || names.size() > kMaxLabels) {
    return config.fail("id2label", "must be an object with a name for each of at most 65536 labels");
  }
  const int unnamed = names.empty() ? kDefaultLabels : static_cast<int>(names.size());
  const int count = config.integer("num_labels", unnamed, 1, kMaxLabels);
  for (int i = 0; i < count; ++i) {
    const auto name = names.find(std::to_string(i));
    out.labels.push_back(name != names.end() && name->is_string() ? name->get<std::string>()
                                                                  : "LABEL_" + std::to_string(i));
  }
}

}  // namespace

DeclaredModel declared_model(std::string_view architecture) {
  constexpr std::string_view kLabels = "ForSequenceClassification", kNone = "Model";
  const auto decoder = [&](std::string_view suffix) {
    return std::string(architecture.substr(0, architecture.size() - suffix.size())) + "ForCausalLM";
  };
  if (const std::optional<DeclaredModel> encoder = declared_encoder(architecture)) return *encoder;
  if (architecture.ends_with(kLabels)) return {decoder(kLabels), ModelHead::labels};
  if (architecture.ends_with(kNone)) return {decoder(kNone), ModelHead::none};
  return {std::string(architecture), ModelHead::vocabulary};
}

void drop_idle_window(ModelConfig& config) {
  if (config.sliding_window >= config.max_position_embeddings) config.sliding_window = 0;
  if (config.sliding_window == 0 && !config.local_rope) config.sliding_layers.clear();
}

Result<ModelConfig> parse_config_json(std::string_view text) {
  WW_ASSIGN_OR_RETURN(const json parsed, parse_object(text, "config.json"));
  ModelConfig out;
  const json& names = parsed.contains("architectures") ? parsed["architectures"] : json();
  if (!names.is_array() || names.empty() || !names[0].is_string()) {
    return Status::invalid_argument("config.json: architectures must name the model class, "
                                    "e.g. [\"LlamaForCausalLM\"]", "architectures");
  }
  out.declared_architecture = names[0].get<std::string>();
  DeclaredModel declared = declared_model(out.declared_architecture);
  out.architecture = std::move(declared.decoder);
  out.head = declared.head;
  // Multimodal wrappers keep the language model's numbers in a section of their own.
  const bool nested = parsed.contains("text_config") && parsed["text_config"].is_object() &&
                      !parsed.contains("hidden_size");
  json object = nested ? parsed["text_config"] : parsed;
  add_config_defaults(object);
  ConfigReader config(object, "config.json");
  out.model_type = config.text("model_type", "");
  const std::string dtype = config.text("dtype", config.text("torch_dtype", "bfloat16"));
  if (const auto known = parse_dtype(dtype)) {
    out.dtype = *known;
  } else {
    config.fail("dtype", "is '" + dtype.substr(0, 40) + "'; supported are float32, bfloat16 and float16");
  }
  if (out.head == ModelHead::labels) read_labels(parsed, config, out);
  const bool encoder = declared_encoder(out.declared_architecture).has_value();
  if (!encoder && (!config.boolean("is_causal", true) || config.boolean("use_bidirectional_attention", false))) {
    config.fail(config.has("is_causal") ? "is_causal" : "use_bidirectional_attention",
                "asks for bidirectional attention, which decoders do not have here");
  }
  read_shape(config, out);
  read_latent(config, out);
  read_quantization(parsed.contains("quantization_config") ? parsed : object, config, out);
  read_moe(config, out);
  read_ropes(config, out);
  read_recurrent_layers(config, out);
  read_drafts(config, out);
  if (config.status().ok() && !encoder) read_window(config, out);
  if (config.status().ok() && encoder) read_encoder(config, out);
  const std::vector<int32_t> bos = config.token_ids("bos_token_id");
  if (!bos.empty()) out.bos_token_id = bos[0];
  out.eos_token_ids = config.token_ids("eos_token_id");
  if (!config.status().ok()) return config.status();
  return out;
}

Result<GenerationDefaults> parse_generation_config_json(std::string_view text) {
  WW_ASSIGN_OR_RETURN(const json parsed, parse_object(text, "generation_config.json"));
  ConfigReader config(parsed, "generation_config.json");
  GenerationDefaults out;
  out.eos_token_ids = config.token_ids("eos_token_id");
  if (config.has("temperature")) out.temperature = config.number("temperature", 1, 0, 100);
  if (config.has("top_p")) out.top_p = config.number("top_p", 1, 0, 1);
  if (config.has("top_k")) out.top_k = config.integer("top_k", 0, -1, 1 << 24);
  if (config.has("min_p")) out.min_p = config.number("min_p", 0, 0, 1);
  if (config.has("repetition_penalty")) {
    out.repetition_penalty = config.number("repetition_penalty", 1, 1e-6, 1e6);
  }
  if (!config.status().ok()) return config.status();
  // A model that says "do not sample" is greedy unless the request says otherwise.
  if (parsed.contains("do_sample") && parsed["do_sample"] == false) out.temperature = 0;
  return out;
}

}  // namespace warpweave
