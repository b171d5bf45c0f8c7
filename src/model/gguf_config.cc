#include "model/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "model/config_rope.h"
#include "ops/router_rule.h"

namespace warpweave {
namespace {

// Reads "<arch>.<key>" with a range; the first error sticks.
class Metadata {
 public:
  Metadata(const GgufContents& file, std::string arch) : file_(file), arch_(std::move(arch)) {}
  const Status& status() const { return status_; }

  int integer(const std::string& key, int fallback, int min, int max) {
    const int64_t* value = get<int64_t>(key, "an integer");
    if (value == nullptr) return fallback;
    if (*value < min || *value > max) {
      fail(key,
           "must be from " + std::to_string(min) + " to " + std::to_string(max) + ", got " + std::to_string(*value));
      return fallback;
    }
    return static_cast<int>(*value);
  }
  int required(const std::string& key, int max) {
    if (!has(key)) fail(key, "is missing");
    return integer(key, 1, 1, max);
  }
  double number(const std::string& key, double fallback, NumberRange range) {
    const double* value = get<double>(key, "a float");
    if (value == nullptr) return fallback;
    if (*value >= range.min && *value <= range.max) return *value;  // false for NaN
    fail(key, fmt::format("must be from {:g} to {:g}, got {:g}", range.min, range.max, *value));
    return fallback;
  }
  bool has(const std::string& key) const { return file_.metadata.contains(arch_ + "." + key); }
  bool boolean(const std::string& key, bool fallback) {
    const bool* value = get<bool>(key, "a boolean");
    return value != nullptr ? *value : fallback;
  }
  // Of integers or booleans.
  const std::vector<int64_t>* list(const std::string& key) { return get<std::vector<int64_t>>(key, "a list"); }
  const std::string* text(const std::string& key) { return get<std::string>(key, "a string"); }
  void fail(const std::string& key, const std::string& rule) {
    if (status_.ok()) status_ = Status::data_loss("metadata " + arch_ + "." + key + " " + rule);
  }

 private:
  template <typename T>
  const T* get(const std::string& key, const char* kind) {
    const T* value = file_.get<T>(arch_ + "." + key);
    if (value == nullptr && has(key)) fail(key, std::string("must be ") + kind);
    return value;
  }

  const GgufContents& file_;
  std::string arch_;
  Status status_;
};

void read_gguf_yarn(Metadata& meta, RopeConfig& rope) {
  rope.beta_fast = meta.number("rope.scaling.yarn_beta_fast", rope.beta_fast, kRopeFactorRange);
  rope.beta_slow = meta.number("rope.scaling.yarn_beta_slow", rope.beta_slow, kRopeFactorRange);
  // A tenth of what config.json calls mscale_all_dim; mscale is taken to be the same, as DeepSeek's are.
  const double tenth = meta.number("rope.scaling.yarn_log_multiplier", 0, NumberRange{0, 1e6});
  if (tenth > 0) rope.mscale = rope.mscale_all_dim = 10 * tenth;
}

void read_gguf_rope(Metadata& meta, ModelConfig& out) {
  if (is_kimi_linear(out.model_type)) out.rope.type = RopeConfig::Type::none;
  if (out.rope.type == RopeConfig::Type::none) return;
  out.rope.theta = meta.number("rope.freq_base", 10000.0, kRopeThetaRange);
  const int head_dim = out.rope_head_dim(), rotary_dim = meta.integer("rope.dimension_count", head_dim, 2, head_dim);
  out.rope.partial_rotary_factor = static_cast<double>(rotary_dim) / head_dim;
  const std::string* scaling = meta.text("rope.scaling.type");
  if (scaling == nullptr || *scaling == "none") return;
  out.rope.factor = meta.number("rope.scaling.factor", 1.0, kRopeFactorRange);
  out.rope.original_max_positions = meta.integer("rope.scaling.original_context_length", 0, 0, 1 << 28);
  if (*scaling == "linear") {
    out.rope.type = RopeConfig::Type::linear;
  } else if (*scaling == "yarn") {
    out.rope.type = RopeConfig::Type::yarn;
    read_gguf_yarn(meta, out.rope);
  } else {
    meta.fail("rope.scaling.type", "'" + scaling->substr(0, 40) + "' is not supported");
  }
}

// A tensor of one divisor for each frequency.
Result<std::vector<float>> read_divisors(const GgufContents& file, const std::string& name, int64_t count) {
  const auto it = file.tensors.find(name);
  if (it == file.tensors.end()) return Status::data_loss("tensor " + name + " is missing");
  const TensorView& view = it->second;
  if (view.dtype != DType::f32 || view.rank != 1 || view.shape[0] != count) {
    return Status::data_loss("tensor " + name + " must hold " + std::to_string(count) + " F32 values");
  }
  std::vector<float> out(count);
  std::memcpy(out.data(), view.data, view.size_bytes());
  for (const float divisor : out) {
    if (!(divisor >= 1e-6f && divisor <= 1e6f)) {
      return Status::data_loss("tensor " + name + " has a value outside 1e-6 to 1e6");
    }
  }
  return out;
}

// How llama.cpp's converter writes Llama 3 scaling.
Status read_rope_divisors(const GgufContents& file, ModelConfig& out) {
  if (!file.tensors.contains("rope_freqs.weight")) return {};
  WW_ASSIGN_OR_RETURN(out.rope.frequency_divisors, read_divisors(file, "rope_freqs.weight", out.head_dim / 2));
  return {};
}

void read_gguf_window(Metadata& meta, const GgufArch& arch, ModelConfig& out) {
  out.sliding_window = meta.integer("attention.sliding_window", 0, 0, 1 << 28);
  if (out.sliding_window == 0) return;
  const std::vector<int64_t>* slides = meta.list("attention.sliding_window_pattern");
  if (slides != nullptr && static_cast<int>(slides->size()) < out.num_layers) {
    return meta.fail("attention.sliding_window_pattern", "must say of every layer whether it has a window");
  }
  for (int i = 0; i < out.num_layers; ++i) {
    const bool usual = arch.window_pattern == 0 || (i + 1) % arch.window_pattern != 0;
    out.sliding_layers.push_back(slides != nullptr ? (*slides)[i] != 0 : usual);
  }
  if (arch.name == "gemma3") {
    out.local_rope = RopeConfig{};  // 10000, unscaled
  } else if (arch.name == "olmo2") {  // with windows it is OLMo 3
    out.model_type = "olmo3";
    out.architecture = "Olmo3ForCausalLM";
    out.local_rope = RopeConfig{};
    out.local_rope->theta = out.rope.theta;
  }
}

// Which layers take no positions.
void read_gguf_nope(const GgufArch& arch, ModelConfig& out) {
  out.nope_layers = nope_beside_windows(out);
  if (arch.name != "smollm3") return;
  for (int i = 0; i < out.num_layers; ++i) out.nope_layers.push_back((i + 1) % 4 == 0);  // files do not say
}

void read_gguf_multipliers(Metadata& meta, ModelConfig& out) {
  const double logits = meta.number("logit_scale", 1, kMultiplierRange);
  out.logit_scale = out.model_type == "granite" ? 1 / logits : logits;
  if (out.model_type != "granite") return;
  out.attention_multiplier = meta.number("attention.scale", 1, kMultiplierRange);
  out.embedding_multiplier = meta.number("embedding_scale", 1, kMultiplierRange);
  out.residual_multiplier = meta.number("residual_scale", 1, kMultiplierRange);
}

// "blk.0.", or that of the layer that predicts further tokens where a file has no other (what llama.cpp's converter
// writes with --mtp).
std::string first_layer(const GgufContents& file, const ModelConfig& config) {
  const bool whole = config.num_nextn_layers == 0 || file.tensors.contains("blk.0.attn_norm.weight");
  return fmt::format("blk.{}.", whole ? 0 : config.num_layers);
}

// What shows only in which tensors there are.
void read_from_tensors(const GgufContents& file, ModelConfig& out) {
  const std::string layer = first_layer(file, out);
  const auto has = [&](const char* name) { return file.tensors.contains(layer + name); };
  out.lm_head_bias = file.tensors.contains("output.bias");
  out.attention_bias = has("attn_q.bias") || has("attn_qkv.bias");
  out.attention_out_bias = has("attn_output.bias");
  out.mlp_bias = has("ffn_up.bias");
  out.use_qk_norm = has("attn_q_norm.weight");
  out.parallel_residual = out.model_type == "cohere2" || (out.model_type == "stablelm" && !has("ffn_norm.weight"));
  out.tie_word_embeddings = !file.tensors.contains("output.weight");
  const int with_experts = layer == "blk.0." ? out.num_layers - 1 : out.num_layers;
  const auto shared = file.tensors.find(fmt::format("blk.{}.ffn_gate_shexp.weight", with_experts));
  if (shared != file.tensors.end() && out.num_experts > 0) {
    out.shared_expert_intermediate_size = static_cast<int>(std::min<int64_t>(shared->second.shape[0], 1 << 24));
  }
  for (const char* name :
       {"attn_q.weight", "attn_q_a.weight", "attn_qkv.weight", "ssm_in.weight", "shortconv.in_proj.weight"}) {
    if (has(name)) out.dtype = file.tensors.find(layer + name)->second.dtype;
  }
  if (!is_gated_hybrid(out.model_type)) return;
  for (int i = 0; i < out.num_layers; ++i) {
    const auto layer_has = [&](const char* name) { return file.tensors.contains(fmt::format("blk.{}.{}", i, name)); };
    if (out.linear && out.model_type == "qwen3_next") out.linear->split_input |= layer_has("attn_qkv.weight");
    if (out.num_experts > 0 && !layer_has("ffn_gate_inp.weight")) out.mlp_only_layers.push_back(i);
  }
}

// Phi: a divisor for every frequency, for short contexts and for long ones.
Status read_longrope(const GgufContents& file, Metadata& meta, ModelConfig& out) {
  if (!file.tensors.contains("rope_factors_long.weight")) return {};
  out.rope.type = RopeConfig::Type::longrope;
  out.rope.original_max_positions = meta.integer("rope.scaling.original_context_length", 0, 2, 1 << 28);
  out.rope.short_mscale = out.rope.long_mscale = meta.number("rope.scaling.attn_factor", 1.0, kRopeFactorRange);
  if (out.rope.original_max_positions == 0) meta.fail("rope.scaling.original_context_length", "is missing");
  const int64_t frequencies = static_cast<int64_t>(out.head_dim * out.rope.partial_rotary_factor) / 2;
  WW_ASSIGN_OR_RETURN(out.rope.short_factors, read_divisors(file, "rope_factors_short.weight", frequencies));
  WW_ASSIGN_OR_RETURN(out.rope.long_factors, read_divisors(file, "rope_factors_long.weight", frequencies));
  return {};
}

// DeepSeek V2 and V3 are one architecture in these files, and told apart by the router's scores.
void read_gguf_scores(Metadata& meta, ModelConfig& out) {
  constexpr int kSoftmax = 1, kSigmoid = 2;
  const char* const key = "expert_gating_func";
  if (out.model_type == "deepseek_v2") {
    const int kind = meta.integer(key, kSoftmax, 0, 1000);
    if (kind > kSigmoid) meta.fail(key, "must be 1 (softmax) or 2 (sigmoid)");
    if (kind != kSigmoid) return;
    out.model_type = "deepseek_v3";
    out.architecture = "DeepseekV3ForCausalLM";
    out.sigmoid_scores = true;
    return;
  }
  out.sigmoid_scores = out.model_type == "glm4_moe" || is_lfm2(out.model_type) || is_kimi_linear(out.model_type);
  const int usual = out.sigmoid_scores ? kSigmoid : kSoftmax;
  if (meta.integer(key, usual, 0, 1000) != usual) meta.fail(key, "is not the one of this architecture");
}

void read_gguf_moe(Metadata& meta, const GgufArch& arch, ModelConfig& out) {
  out.num_experts = meta.integer("expert_count", 0, 0, kMaxExperts);
  out.experts_per_token = meta.integer("expert_used_count", 0, 0, kMaxExpertsPerToken);
  out.moe_intermediate_size = meta.integer("expert_feed_forward_length", out.intermediate_size, 1, 1 << 24);
  if (out.experts_per_token > out.num_experts) meta.fail("expert_used_count", "must be at most expert_count");
  if (out.num_experts == 0) return;
  if (out.experts_per_token < 1) meta.fail("expert_used_count", "must be at least 1");
  if (out.model_type == "phimoe" && out.experts_per_token != 2) meta.fail("expert_used_count", "must be 2 for phimoe");
  if (out.model_type == "llama") {
    out.model_type = "mixtral";
    out.architecture = "MixtralForCausalLM";
  }
  read_gguf_scores(meta, out);
  out.norm_topk_prob = meta.boolean("expert_weights_norm", arch.experts_renormalised);
  out.routed_scaling_factor = meta.number("expert_weights_scale", 1, NumberRange{-1e6, 1e6});
  out.n_group = meta.integer("expert_group_count", 1, 1, kMaxExperts);
  out.topk_group = meta.integer("expert_group_used_count", out.n_group, 1, kMaxExperts);
  out.first_k_dense_replace = meta.integer("leading_dense_block_count", 0, 0, 1 << 20);
}

// Layers that predict further tokens are counted, but are not of the decoder.
void leave_predicting_layers(Metadata& meta, const GgufArch& arch, ModelConfig& out) {
  const int predicting = meta.integer("nextn_predict_layers", 0, 0, 64);
  if (predicting >= out.num_layers) return meta.fail("nextn_predict_layers", "must be fewer than block_count");
  out.num_layers -= predicting;
  if (arch.nextn) out.num_nextn_layers = predicting;
  if (out.recurrent_layers.empty()) return;
  out.recurrent_layers.resize(out.num_layers);
  if (out.num_kv_layers() == 0) meta.fail("nextn_predict_layers", "must leave a layer with full attention");
}

// LFM2 and Kimi Linear: heads of K and V of every layer, 0 for those that keep a state in their place.
void read_gguf_recurrent_layers(Metadata& meta, const char* key, ModelConfig& out) {
  const std::vector<int64_t>* heads = meta.list(key);
  if (heads == nullptr || static_cast<int>(heads->size()) != out.num_layers) {
    return meta.fail(key, "must say of every layer how many heads of K and V it has");
  }
  for (const int64_t count : *heads) {
    if (count < 0 || count > 65536 || (count > 0 && out.num_kv_heads > 0 && count != out.num_kv_heads)) {
      return meta.fail(key, "must be 0 for layers without attention and one number for all others");
    }
    if (count > 0) out.num_kv_heads = static_cast<int>(count);
    out.recurrent_layers.push_back(count == 0);
  }
  if (out.num_kv_heads == 0) meta.fail(key, "must leave a layer with full attention");
}

// Qwen3-Next and Qwen3.5: the layers that a list names keep a state, or every one but one in so many.
void read_gguf_delta_nets(Metadata& meta, ModelConfig& out) {
  constexpr int kMostHeads = 4096, kWidestHead = 256;
  LinearAttnConfig& linear = out.linear.emplace();
  linear.k_heads = meta.required("ssm.group_count", kMostHeads);
  linear.v_heads = meta.required("ssm.time_step_rank", kMostHeads);
  linear.k_dim = meta.required("ssm.state_size", kWidestHead);
  const int v_width = meta.required("ssm.inner_size", kMostHeads * kWidestHead);
  linear.v_dim = v_width / linear.v_heads;
  linear.conv_width = meta.integer("ssm.conv_kernel", 4, 2, 8);
  if (linear.v_heads % linear.k_heads != 0) meta.fail("ssm.group_count", "must divide ssm.time_step_rank");
  if (linear.k_dim % 16 != 0) meta.fail("ssm.state_size", "must be a multiple of 16");
  if (v_width % linear.v_heads != 0 || linear.v_dim % 16 != 0 || linear.v_dim < 16 || linear.v_dim > kWidestHead) {
    meta.fail("ssm.inner_size", "must be ssm.time_step_rank times a multiple of 16 up to 256");
  }
  const int interval = meta.integer("full_attention_interval", 4, 1, 1 << 20);
  const std::vector<int64_t>* const listed = meta.list("attention.recurrent_layers");
  if (listed != nullptr && static_cast<int>(listed->size()) < out.num_layers) {
    return meta.fail("attention.recurrent_layers", "must say of every layer whether it keeps a state");
  }
  for (int i = 0; i < out.num_layers; ++i) {
    out.recurrent_layers.push_back(listed != nullptr ? (*listed)[i] != 0 : (i + 1) % interval != 0);
  }
  if (out.num_kv_layers() == 0) meta.fail("full_attention_interval", "must leave a layer with full attention");
  if (out.num_recurrent_layers() > 0) return;
  out.linear.reset();
  out.recurrent_layers.clear();
}

void read_gguf_kv_heads(Metadata& meta, ModelConfig& out) {
  const char* const key = "attention.head_count_kv";
  if (is_lfm2(out.model_type)) {
    out.short_conv = ShortConvConfig{.width = meta.integer("shortconv.l_cache", 3, 2, 8)};
    if (out.hidden_size % 16 != 0) meta.fail("embedding_length", "must be a multiple of 16");
    return read_gguf_recurrent_layers(meta, key, out);
  }
  if (is_gated_hybrid(out.model_type)) read_gguf_delta_nets(meta, out);
  if (is_kimi_linear(out.model_type)) {
    const int head = meta.required("kda.head_dim", 256);
    if (head % 16 != 0) meta.fail("kda.head_dim", "must be a multiple of 16");
    out.linear = LinearAttnConfig{.k_heads = out.num_q_heads, .v_heads = out.num_q_heads, .k_dim = head, .v_dim = head,
                                  .conv_width = meta.integer("ssm.conv_kernel", 4, 2, 8), .channel_decay = true};
    return read_gguf_recurrent_layers(meta, key, out);
  }
  out.num_kv_heads = meta.integer(key, out.num_q_heads, 1, 65536);
}

// Newer files name the heads' own dims beside those of the cached row; older ones have them where other models do.
void read_gguf_latent(Metadata& meta, ModelConfig& out) {
  constexpr int kMaxHead = 4096;
  LatentConfig& latent = out.latent.emplace();
  latent.q_rank = meta.integer("attention.q_lora_rank", 0, 0, 1 << 24);
  latent.kv_rank = meta.required("attention.kv_lora_rank", kMaxHead);
  latent.rope_dim = meta.required("rope.dimension_count", kMaxHead);
  const bool newer = meta.has("attention.key_length_mla");
  const char* const key_length = newer ? "attention.key_length_mla" : "attention.key_length";
  latent.nope_dim = meta.required(key_length, 2 * kMaxHead) - latent.rope_dim;
  latent.v_dim = meta.required(newer ? "attention.value_length_mla" : "attention.value_length", kMaxHead);
  if (latent.kv_rank % 2 != 0) meta.fail("attention.kv_lora_rank", "must be even");
  if (latent.rope_dim % 2 != 0) meta.fail("rope.dimension_count", "must be even");
  if (latent.nope_dim < 1) meta.fail(key_length, "must be more than rope.dimension_count");
  if (meta.has("attention.temperature_scale")) {
    meta.fail("attention.temperature_scale", "is not supported: queries are not scaled by their positions here");
  }
  out.num_kv_heads = 1;
  out.head_dim = latent.token_dim();
}

}  // namespace

Result<ModelConfig> read_gguf_config(const GgufContents& file, const GgufArch& arch) {
  Metadata meta(file, std::string(arch.name));
  ModelConfig out;
  out.model_type = arch.model_type;
  out.architecture = arch.architecture;
  out.hidden_size = meta.required("embedding_length", 1 << 24);
  out.num_layers = meta.required("block_count", 4096);
  out.num_q_heads = meta.required("attention.head_count", 65536);
  read_gguf_kv_heads(meta, out);
  if (!meta.status().ok()) return meta.status();  // before it divides
  out.head_dim = meta.integer("attention.key_length", std::max(2, out.hidden_size / out.num_q_heads), 2, 4096);
  if (arch.latent) read_gguf_latent(meta, out);
  if (!meta.status().ok()) return meta.status();
  out.intermediate_size = meta.integer("feed_forward_length", 1, 1, 1 << 24);
  out.max_position_embeddings = meta.required("context_length", 1 << 28);
  out.norm_eps = meta.number("attention.layer_norm_epsilon", 1e-6, kNormEpsRange);
  out.norm_eps = meta.number("attention.layer_norm_rms_epsilon", out.norm_eps, kNormEpsRange);
  out.attention_softcap = meta.number("attn_logit_softcapping", 0, kSoftcapRange);
  out.final_softcap = meta.number("final_logit_softcapping", 0, kSoftcapRange);
  read_gguf_moe(meta, arch, out);
  leave_predicting_layers(meta, arch, out);
  out.hidden_act = arch.gelu ? "gelu_pytorch_tanh" : "silu";
  if (out.num_q_heads % out.num_kv_heads != 0) meta.fail("attention.head_count_kv", "must divide head_count");
  if (out.head_dim % 2 != 0) meta.fail("attention.key_length", "must be even");
  read_gguf_rope(meta, out);
  read_gguf_window(meta, arch, out);
  read_gguf_nope(arch, out);
  drop_idle_window(out);
  read_gguf_multipliers(meta, out);
  WW_RETURN_IF_ERROR(read_longrope(file, meta, out));
  if (!meta.status().ok()) return meta.status();
  WW_RETURN_IF_ERROR(read_rope_divisors(file, out));
  read_from_tensors(file, out);
  if (out.model_type == "stablelm" && out.use_qk_norm) {
    return Status::unsupported("tensor blk.0.attn_q_norm.weight: q and k get no layer norms here");
  }
  const auto embedding = file.tensors.find("token_embd.weight");
  if (embedding == file.tensors.end() || embedding->second.rank != 2) {
    return Status::data_loss("tensor token_embd.weight is missing");
  }
  out.vocab_size = static_cast<int>(std::min<int64_t>(embedding->second.shape[0], 1 << 24));
  for (const char* key :
       {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    const int64_t* id = file.get<int64_t>(key);
    if (id == nullptr) continue;
    if (*id < 0 || *id >= out.vocab_size) {
      return Status::data_loss(fmt::format("metadata {} is {}, must be a token id below {}", key, *id, out.vocab_size));
    }
    if (std::string_view(key).find("bos") != std::string_view::npos) {
      out.bos_token_id = static_cast<int32_t>(*id);
    } else {
      out.eos_token_ids.push_back(static_cast<int32_t>(*id));
    }
  }
  return out;
}

}  // namespace warpweave
