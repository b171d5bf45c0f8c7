#include "model/build_decoder.h"

#include <cmath>
#include <cstring>

#include "base/float16.h"
#include "model/families/family.h"
#include "model/rope_frequencies.h"

namespace warpweave {
namespace {

// Rows of one weight matrix, with the optional bias that belongs to them.
struct PartName {
  std::string weight;
  int64_t rows;
  std::string bias;  // empty: none
};

std::vector<float> widened(const TensorView& view) {
  std::vector<float> out(view.elements());
  dequantize_row(view.dtype, view.data, view.elements(), out.data());
  return out;
}

class Builder {
 public:
  Builder(const ModelConfig& config, const FamilyTraits& traits, std::shared_ptr<WeightSource> source,
          const BuildOptions& options, ThreadTeam& team)
      : config_(config), traits_(traits), source_(std::move(source)), options_(options), team_(team) {}

  Result<DecoderWeights> build();
  DecoderSpec spec() const;

 private:
  Result<std::vector<float>> vector(const std::string& name, int64_t size);
  Result<PackedLinear> linear(const std::vector<PartName>& names, int64_t in_features,
                              GluActivation glu = GluActivation::none, ComputeMode* mode = nullptr);
  Result<PackedLinear> pack(std::vector<LinearPart> parts, GluActivation glu, ComputeMode mode);
  Status convert(std::vector<LinearPart>& parts);
  Status attention(const std::string& prefix, int index, DecoderLayer& layer);
  Status mlp(const std::string& prefix, DecoderLayer& layer);
  Status experts(const std::string& prefix, DecoderLayer& layer);
  Status fused_experts(const std::string& prefix, DecoderLayer& layer);
  Status norms(const std::string& prefix, DecoderLayer& layer);
  Status head(DecoderWeights& out);
  bool has_experts(int layer) const;

  ComputeMode compute_mode() const {
    return options_.dtype == DType::bf16 ? ComputeMode::bf16 : ComputeMode::f32;
  }

  const ModelConfig& config_;
  const FamilyTraits& traits_;
  std::shared_ptr<WeightSource> source_;
  const BuildOptions& options_;
  ThreadTeam& team_;
  std::vector<std::vector<uint16_t>> converted_;  // alive while one linear is packed
};

Result<std::vector<float>> Builder::vector(const std::string& name, int64_t size) {
  const int64_t shape[] = {size};
  WW_ASSIGN_OR_RETURN(const TensorView view, source_->find(name, shape));
  return widened(view);
}

// Brings f32 weights (or 16-bit ones of the other kind) to the serving dtype, and parts that a GGUF
// file keeps in different block formats to one that holds them all.
Status Builder::convert(std::vector<LinearPart>& parts) {
  bool mixed = false;
  for (const LinearPart& part : parts) mixed |= part.weight.dtype != parts[0].weight.dtype;
  for (LinearPart& part : parts) {
    const DType from = part.weight.dtype;
    DType to = from;
    if (mixed) {
      to = DType::f16;
    } else if (!is_quantized(from) && options_.dtype != DType::f32) {
      to = options_.dtype;
    }
    if (from == to) continue;
    const int64_t count = part.weight.elements();
    std::vector<uint16_t>& out = converted_.emplace_back(count);
    const int64_t rows = part.weight.shape[0], cols = part.weight.shape[1];
    const size_t row_bytes = part.weight.size_bytes() / rows;
    team_.parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
      std::vector<float> row(cols);
      for (int64_t r = begin; r < end; ++r) {
        dequantize_row(from, static_cast<const std::byte*>(part.weight.data) + r * row_bytes, cols, row.data());
        if (to == DType::bf16) {
          f32_to_bf16_row(row.data(), cols, out.data() + r * cols);
        } else {
          f32_to_f16_row(row.data(), cols, out.data() + r * cols);
        }
      }
    });
    part.weight.data = out.data();
    part.weight.dtype = to;
  }
  return {};
}

Result<PackedLinear> Builder::pack(std::vector<LinearPart> parts, GluActivation glu, ComputeMode mode) {
  WW_RETURN_IF_ERROR(convert(parts));
  auto packed = PackedLinear::pack(parts, {.compute = mode, .glu = glu}, team_);
  converted_.clear();
  return packed;
}

Result<PackedLinear> Builder::linear(const std::vector<PartName>& names, int64_t in_features,
                                     GluActivation glu, ComputeMode* mode) {
  std::vector<LinearPart> parts;
  std::vector<TensorView> used;
  for (const PartName& name : names) {
    LinearPart part;
    const int64_t shape[] = {name.rows, in_features};
    WW_ASSIGN_OR_RETURN(part.weight, source_->find(name.weight, shape));
    used.push_back(part.weight);
    if (!name.bias.empty() && source_->has(name.bias)) {
      const int64_t bias_shape[] = {name.rows};
      WW_ASSIGN_OR_RETURN(part.bias, source_->find(name.bias, bias_shape));
    }
    parts.push_back(part);
  }
  auto packed = pack(std::move(parts), glu, mode != nullptr ? *mode : compute_mode());
  for (const TensorView& view : used) source_->release(view);
  if (!packed.ok()) return packed.status().with_context(names[0].weight);
  return packed;
}

Status Builder::attention(const std::string& prefix, int index, DecoderLayer& layer) {
  const int64_t q_rows = int64_t{config_.num_q_heads} * config_.head_dim;
  const int64_t kv_rows = int64_t{config_.num_kv_heads} * config_.head_dim;
  const auto part = [&](const char* name, int64_t rows, bool bias) {
    return PartName{prefix + name + ".weight", rows, bias ? prefix + name + ".bias" : ""};
  };
  const std::vector<PartName> qkv = {part("q_proj", q_rows, traits_.qkv_bias),
                                     part("k_proj", kv_rows, traits_.qkv_bias),
                                     part("v_proj", kv_rows, traits_.qkv_bias)};
  // One product where the formats agree; GGUF files often keep v in a finer one.
  for (size_t begin = 0, end = 0; begin < qkv.size(); begin = end) {
    const DType format = source_->dtype(qkv[begin].weight);
    while (end < qkv.size() && source_->dtype(qkv[end].weight) == format) ++end;
    WW_ASSIGN_OR_RETURN(layer.qkv.emplace_back(),
                        linear({qkv.begin() + begin, qkv.begin() + end}, config_.hidden_size));
  }
  WW_ASSIGN_OR_RETURN(layer.o, linear({part("o_proj", config_.hidden_size, traits_.o_bias)}, q_rows));
  if (traits_.qk_norm) {
    WW_ASSIGN_OR_RETURN(layer.q_norm, vector(prefix + "q_norm.weight", config_.head_dim));
    WW_ASSIGN_OR_RETURN(layer.k_norm, vector(prefix + "k_norm.weight", config_.head_dim));
  }
  if (traits_.sinks && source_->has(prefix + "sinks")) {
    WW_ASSIGN_OR_RETURN(layer.sinks, vector(prefix + "sinks", config_.num_q_heads));
  }
  const bool slides = !config_.sliding_layers.empty() && config_.sliding_layers[index];
  if (slides) {
    layer.window_left = config_.sliding_window - 1;
    layer.rope_index = config_.local_rope ? 1 : 0;
  }
  return {};
}

Status Builder::mlp(const std::string& prefix, DecoderLayer& layer) {
  const int64_t ffn = config_.intermediate_size;
  const auto part = [&](const char* name, int64_t rows) {
    return PartName{prefix + name + ".weight", rows, traits_.mlp_bias ? prefix + name + ".bias" : ""};
  };
  WW_ASSIGN_OR_RETURN(layer.gate_up, linear({part("gate_proj", ffn), part("up_proj", ffn)},
                                            config_.hidden_size, traits_.activation));
  WW_ASSIGN_OR_RETURN(layer.down, linear({part("down_proj", config_.hidden_size)}, ffn));
  return {};
}

Status Builder::experts(const std::string& prefix, DecoderLayer& layer) {
  ComputeMode exact = ComputeMode::f32;  // routing decides discretely
  const std::string router = traits_.fused_experts ? "router" : "gate";
  WW_ASSIGN_OR_RETURN(layer.router, linear({{prefix + router + ".weight", config_.num_experts,
                                             prefix + router + ".bias"}},
                                           config_.hidden_size, GluActivation::none, &exact));
  if (traits_.fused_experts) return fused_experts(prefix + "experts.", layer);
  const int64_t ffn = config_.moe_intermediate_size;
  for (int e = 0; e < config_.num_experts; ++e) {
    const std::string expert = prefix + "experts." + std::to_string(e) + ".";
    MoeExpert& out = layer.experts.emplace_back();
    WW_ASSIGN_OR_RETURN(out.gate_up, linear({{expert + "gate_proj.weight", ffn, ""},
                                             {expert + "up_proj.weight", ffn, ""}},
                                            config_.hidden_size, traits_.activation));
    WW_ASSIGN_OR_RETURN(out.down, linear({{expert + "down_proj.weight", config_.hidden_size, ""}}, ffn));
  }
  return {};
}

// [experts, in, out] to one expert's [out, in], in f32.
std::vector<float> transposed_expert(const TensorView& all, int64_t expert) {
  const int64_t in = all.shape[1], out = all.shape[2];
  const auto* base = static_cast<const std::byte*>(all.data) + expert * in * out * dtype_info(all.dtype).block_bytes;
  std::vector<float> row(out), result(in * out);
  for (int64_t i = 0; i < in; ++i) {
    dequantize_row(all.dtype, base + i * out * dtype_info(all.dtype).block_bytes, out, row.data());
    for (int64_t o = 0; o < out; ++o) result[o * in + i] = row[o];
  }
  return result;
}

Status Builder::fused_experts(const std::string& prefix, DecoderLayer& layer) {
  const int64_t hidden = config_.hidden_size, ffn = config_.moe_intermediate_size, n = config_.num_experts;
  if (source_->has(prefix + "gate_up_proj_blocks")) {
    return Status::unsupported("MXFP4 expert weights (" + prefix + "gate_up_proj_blocks) are not supported; "
                               "use a checkpoint saved in bfloat16");
  }
  const int64_t up_shape[] = {n, hidden, 2 * ffn}, down_shape[] = {n, ffn, hidden};
  const int64_t up_bias_shape[] = {n, 2 * ffn}, down_bias_shape[] = {n, hidden};
  WW_ASSIGN_OR_RETURN(const TensorView up, source_->find(prefix + "gate_up_proj", up_shape));
  WW_ASSIGN_OR_RETURN(const TensorView down, source_->find(prefix + "down_proj", down_shape));
  std::vector<float> up_bias, down_bias;
  if (source_->has(prefix + "gate_up_proj_bias")) {
    WW_ASSIGN_OR_RETURN(const TensorView ub, source_->find(prefix + "gate_up_proj_bias", up_bias_shape));
    WW_ASSIGN_OR_RETURN(const TensorView db, source_->find(prefix + "down_proj_bias", down_bias_shape));
    up_bias = widened(ub);
    down_bias = widened(db);
  }
  const auto view = [](const float* data, std::initializer_list<int64_t> shape) {
    TensorView v{.data = data, .dtype = DType::f32, .rank = static_cast<int>(shape.size()), .shape = {}};
    std::copy(shape.begin(), shape.end(), v.shape.begin());
    return v;
  };
  for (int64_t e = 0; e < n; ++e) {
    const std::vector<float> up_rows = transposed_expert(up, e), down_rows = transposed_expert(down, e);
    LinearPart gate{.weight = view(up_rows.data(), {2 * ffn, hidden}), .bias = {}, .first_row = 0, .row_step = 2, .rows = ffn};
    LinearPart out{.weight = view(down_rows.data(), {hidden, ffn}), .bias = {}};
    if (!up_bias.empty()) {
      gate.bias = view(up_bias.data() + e * 2 * ffn, {2 * ffn});
      out.bias = view(down_bias.data() + e * hidden, {hidden});
    }
    LinearPart up_part = gate;
    up_part.first_row = 1;
    MoeExpert& expert = layer.experts.emplace_back();
    WW_ASSIGN_OR_RETURN(expert.gate_up, pack({gate, up_part}, traits_.activation, compute_mode()));
    WW_ASSIGN_OR_RETURN(expert.down, pack({out}, GluActivation::none, compute_mode()));
  }
  source_->release(up);
  source_->release(down);
  return {};
}

Status Builder::norms(const std::string& prefix, DecoderLayer& layer) {
  const int64_t hidden = config_.hidden_size;
  WW_ASSIGN_OR_RETURN(layer.input_norm, vector(prefix + "input_layernorm.weight", hidden));
  if (!traits_.branch_norms) {
    WW_ASSIGN_OR_RETURN(layer.mlp_norm, vector(prefix + "post_attention_layernorm.weight", hidden));
    return {};
  }
  WW_ASSIGN_OR_RETURN(layer.attention_out_norm, vector(prefix + "post_attention_layernorm.weight", hidden));
  WW_ASSIGN_OR_RETURN(layer.mlp_norm, vector(prefix + "pre_feedforward_layernorm.weight", hidden));
  WW_ASSIGN_OR_RETURN(layer.mlp_out_norm, vector(prefix + "post_feedforward_layernorm.weight", hidden));
  return {};
}

Status Builder::head(DecoderWeights& out) {
  const int64_t shape[] = {config_.vocab_size, config_.hidden_size};
  const std::string embedding = "model.embed_tokens.weight";
  const bool tied = config_.tie_word_embeddings || !source_->has("lm_head.weight");
  if (!tied) {
    WW_ASSIGN_OR_RETURN(out.embedding, source_->find(embedding, shape));
    out.embedding_owner = source_;
  }
  WW_ASSIGN_OR_RETURN(out.lm_head, linear({{tied ? embedding : "lm_head.weight", config_.vocab_size, ""}},
                                          config_.hidden_size));
  WW_ASSIGN_OR_RETURN(out.final_norm, vector("model.norm.weight", config_.hidden_size));
  return {};
}

bool Builder::has_experts(int layer) const {
  if (config_.num_experts == 0 || (layer + 1) % config_.decoder_sparse_step != 0) return false;
  for (int dense : config_.mlp_only_layers) {
    if (dense == layer) return false;
  }
  return true;
}

Result<DecoderWeights> Builder::build() {
  DecoderWeights out;
  if (config_.rope.type != RopeConfig::Type::none) {
    for (const RopeConfig* rope : {&config_.rope, config_.local_rope ? &*config_.local_rope : nullptr}) {
      if (rope == nullptr) continue;
      const RopeFrequencies f = rope_frequencies(*rope, config_.head_dim, config_.max_position_embeddings);
      out.ropes.push_back(RopeTable::make(f.inv_freq, options_.max_positions, false, f.attention_factor));
    }
  }
  WW_RETURN_IF_ERROR(head(out));
  for (int i = 0; i < config_.num_layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    DecoderLayer& layer = out.layers.emplace_back();
    WW_RETURN_IF_ERROR(norms(prefix, layer));
    WW_RETURN_IF_ERROR(attention(prefix + "self_attn.", i, layer));
    WW_RETURN_IF_ERROR(has_experts(i) ? experts(prefix + "mlp.", layer) : mlp(prefix + "mlp.", layer));
    if (options_.progress) options_.progress(i + 1, config_.num_layers);
  }
  return out;
}

DecoderSpec Builder::spec() const {
  DecoderSpec spec;
  spec.vocab_size = config_.vocab_size;
  spec.hidden_size = config_.hidden_size;
  spec.num_q_heads = config_.num_q_heads;
  spec.num_kv_heads = config_.num_kv_heads;
  spec.head_dim = config_.head_dim;
  spec.attention_scale = traits_.attention_scale > 0
                             ? traits_.attention_scale
                             : 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  spec.attention_softcap = static_cast<float>(config_.attention_softcap);
  spec.final_softcap = static_cast<float>(config_.final_softcap);
  spec.embedding_scale = traits_.embedding_scale;
  spec.norm_eps = static_cast<float>(config_.norm_eps);
  spec.norm_weight_offset = traits_.norm_weight_offset;
  spec.experts_per_token = config_.experts_per_token;
  spec.router_norm = traits_.router_norm;
  return spec;
}

}  // namespace

Result<std::unique_ptr<DecoderModel>> build_decoder(const ModelConfig& config,
                                                    std::shared_ptr<WeightSource> source,
                                                    const BuildOptions& options, ThreadTeam& team) {
  WW_ASSIGN_OR_RETURN(const Family family, find_family(config.architecture));
  const FamilyTraits traits = family.traits(config);
  const bool silu = config.hidden_act == "silu", gelu = config.hidden_act.starts_with("gelu");
  if ((traits.activation == GluActivation::silu && !silu) || (traits.activation == GluActivation::gelu_tanh && !gelu)) {
    return Status::unsupported("config.json: hidden_act '" + config.hidden_act.substr(0, 40) +
                               "' is not supported for " + config.architecture, "hidden_act");
  }
  Builder builder(config, traits, std::move(source), options, team);
  WW_ASSIGN_OR_RETURN(DecoderWeights weights, builder.build());
  return std::make_unique<DecoderModel>(config, builder.spec(), std::move(weights));
}

}  // namespace warpweave
