// Weights by name to the layers of a decoder, for every kind of memory: finds each tensor the family
// needs, checks its shape, and hands it to a Target that packs it (build_decoder.cc: host memory;
// gpu_weights.h: a GPU's).
//
// A Target has
//   types Linear, Vector, Expert (with gate_up and down), Layer, Weights
//   bool kOneFormat                     all parts of a product end in one format
//   Result<Vector> vector(view)         a list of floats
//   Result<Linear> pack(parts, glu, exact)  one product; parts may go away afterwards (LinearPart::stays: when
//                                       they are released). exact: it multiplies in f32 (a router, which
//                                       decides discretely)
//   bool takes_fp8()                    parts may be e4m3 codes with scales
//   bool takes_random(dtype)            parts of that dtype may be a rule without data (LinearPart::random)
//   void begin_experts(count), void end_experts()  what is packed between belongs to a layer's experts, in turns of
//                                       gate_up and down
//   Status embedding(part, source, weights) an untied embedding
//   Result<Rope> rope(table)            a rotary table
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/build_decoder.h"
#include "model/families/family.h"
#include "model/rope_frequencies.h"
#include "model/weight_source.h"

namespace warpweave {

// Rows of one weight matrix, with the optional bias that belongs to them.
struct PartName {
  std::string weight;
  int64_t rows;
  std::string bias;  // empty: none
};

inline std::vector<float> widened(const TensorView& view) {
  std::vector<float> out(view.elements());
  dequantize_row(view.dtype, view.data, view.elements(), out.data());
  return out;
}

template <typename Target>
class DecoderBuilder {
 public:
  using Linear = typename Target::Linear;
  using Vector = typename Target::Vector;
  using Layer = typename Target::Layer;

  DecoderBuilder(const ModelConfig& config, const FamilyTraits& traits, std::shared_ptr<WeightSource> source,
                 const BuildOptions& options, Target& target)
      : config_(config), traits_(traits), source_(std::move(source)), options_(options), target_(target) {}

  Result<typename Target::Weights> build();

 private:
  Result<Vector> vector(const std::string& name, int64_t size);
  Result<Vector> optional_vector(const std::string& name, int64_t size);  // empty where there is none
  Result<Linear> linear(const std::vector<PartName>& names, int64_t in_features,
                        GluActivation glu = GluActivation::none, bool exact = false);
  Result<LinearPart> matrix(const std::string& name, std::span<const int64_t> shape, bool exact);
  Status attention(const std::string& prefix, int index, Layer& layer);
  Status mlp(const std::string& prefix, Layer& layer);
  Status experts(const std::string& prefix, Layer& layer);
  Status shared_experts(const std::string& prefix, Layer& layer);
  Status fused_experts(const std::string& prefix, Layer& layer);
  Status norms(const std::string& prefix, Layer& layer);
  Status head(typename Target::Weights& out);
  bool has_experts(int layer) const;

  const ModelConfig& config_;
  const FamilyTraits& traits_;
  std::shared_ptr<WeightSource> source_;
  const BuildOptions& options_;
  Target& target_;
};

template <typename Target>
auto DecoderBuilder<Target>::vector(const std::string& name, int64_t size) -> Result<Vector> {
  const int64_t shape[] = {size};
  WW_ASSIGN_OR_RETURN(const TensorView view, source_->find(name, shape));
  return target_.vector(view);
}

template <typename Target>
auto DecoderBuilder<Target>::optional_vector(const std::string& name, int64_t size) -> Result<Vector> {
  return source_->has(name) ? vector(name, size) : Result<Vector>(Vector());
}

// A whole weight matrix that is not in 8 bits.
template <typename Target>
Result<LinearPart> DecoderBuilder<Target>::matrix(const std::string& name, std::span<const int64_t> shape, bool exact) {
  LinearPart part;
  part.stays = true;
  const DType dtype = source_->dtype(name);
  if (!exact && target_.takes_random(dtype)) part.random = source_->random(name, shape);
  if (part.random) {
    part.weight = {.data = nullptr, .dtype = dtype, .rank = 2, .shape = {shape[0], shape[1]}};
  } else {
    WW_ASSIGN_OR_RETURN(part.weight, source_->find(name, shape));
  }
  return part;
}

template <typename Target>
auto DecoderBuilder<Target>::linear(const std::vector<PartName>& names, int64_t in_features,
                                    GluActivation glu, bool exact) -> Result<Linear> {
  std::vector<LinearPart> parts;
  std::vector<TensorView> used;
  std::vector<WeightScales> scales(names.size());
  for (const PartName& name : names) {
    LinearPart part;
    const int64_t shape[] = {name.rows, in_features};
    if (!exact && target_.takes_fp8() && source_->has_fp8(name.weight)) {
      WW_ASSIGN_OR_RETURN(Fp8Matrix matrix, source_->find_fp8(name.weight, shape));
      part.weight = matrix.codes;
      part.stays = true;
      part.scales = &(scales[parts.size()] = std::move(matrix.scales));
    } else {
      WW_ASSIGN_OR_RETURN(part, matrix(name.weight, shape, exact));
    }
    if (!part.random) used.push_back(part.weight);
    if (!name.bias.empty() && source_->has(name.bias)) {
      const int64_t bias_shape[] = {name.rows};
      WW_ASSIGN_OR_RETURN(part.bias, source_->find(name.bias, bias_shape));
    }
    parts.push_back(part);
  }
  auto packed = target_.pack(std::move(parts), glu, exact);
  for (const TensorView& view : used) source_->release(view);
  if (!packed.ok()) return packed.status().with_context(names[0].weight);
  return packed;
}

template <typename Target>
Status DecoderBuilder<Target>::attention(const std::string& prefix, int index, Layer& layer) {
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
    while (end < qkv.size() && (Target::kOneFormat || source_->dtype(qkv[end].weight) == format)) ++end;
    WW_ASSIGN_OR_RETURN(layer.qkv.emplace_back(),
                        linear({qkv.begin() + begin, qkv.begin() + end}, config_.hidden_size));
  }
  WW_ASSIGN_OR_RETURN(layer.o, linear({part("o_proj", config_.hidden_size, traits_.o_bias)}, q_rows));
  if (traits_.qk_norm) {
    WW_ASSIGN_OR_RETURN(layer.q_norm, vector(prefix + "q_norm.weight", traits_.wide_qk_norm ? q_rows : config_.head_dim));
    WW_ASSIGN_OR_RETURN(layer.k_norm, vector(prefix + "k_norm.weight", traits_.wide_qk_norm ? kv_rows : config_.head_dim));
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

template <typename Target>
Status DecoderBuilder<Target>::mlp(const std::string& prefix, Layer& layer) {
  const int64_t ffn = config_.intermediate_size;
  const auto part = [&](const char* name, int64_t rows) {
    return PartName{prefix + name + ".weight", rows, traits_.mlp_bias ? prefix + name + ".bias" : ""};
  };
  WW_ASSIGN_OR_RETURN(layer.gate_up, linear({part("gate_proj", ffn), part("up_proj", ffn)},
                                            config_.hidden_size, traits_.activation));
  WW_ASSIGN_OR_RETURN(layer.down, linear({part("down_proj", config_.hidden_size)}, ffn));
  return {};
}

template <typename Target>
Status DecoderBuilder<Target>::experts(const std::string& prefix, Layer& layer) {
  const ExpertNames& names = traits_.expert_names;
  const std::string router = prefix + names.router;
  WW_ASSIGN_OR_RETURN(layer.router, linear({{router + ".weight", config_.num_experts, router + ".bias"}},
                                           config_.hidden_size, GluActivation::none, /*exact=*/true));
  WW_ASSIGN_OR_RETURN(layer.router_correction,
                      optional_vector(router + ".e_score_correction_bias", config_.num_experts));
  WW_RETURN_IF_ERROR(shared_experts(prefix, layer));
  target_.begin_experts(config_.num_experts);
  if (traits_.fused_experts) return fused_experts(prefix + "experts.", layer);
  const int64_t ffn = config_.moe_intermediate_size;
  for (int e = 0; e < config_.num_experts; ++e) {
    const std::string expert = prefix + "experts." + std::to_string(e) + ".";
    typename Target::Expert& out = layer.experts.emplace_back();
    WW_ASSIGN_OR_RETURN(out.gate_up, linear({{expert + names.gate + ".weight", ffn, ""},
                                             {expert + names.up + ".weight", ffn, ""}},
                                            config_.hidden_size, traits_.activation));
    WW_ASSIGN_OR_RETURN(out.down, linear({{expert + names.down + ".weight", config_.hidden_size, ""}}, ffn));
  }
  target_.end_experts();
  return {};
}

template <typename Target>
Status DecoderBuilder<Target>::shared_experts(const std::string& prefix, Layer& layer) {
  const int64_t hidden = config_.hidden_size, ffn = config_.shared_expert_intermediate_size;
  if (ffn == 0) return {};
  const std::string shared = prefix + traits_.expert_names.shared + ".";
  WW_ASSIGN_OR_RETURN(layer.shared_gate_up, linear({{shared + "gate_proj.weight", ffn, ""},
                                                    {shared + "up_proj.weight", ffn, ""}},
                                                   hidden, traits_.activation));
  WW_ASSIGN_OR_RETURN(layer.shared_down, linear({{shared + "down_proj.weight", hidden, ""}}, ffn));
  if (!traits_.shared_expert_gate) return {};
  const int64_t shape[] = {1, hidden};
  WW_ASSIGN_OR_RETURN(TensorView gate, source_->find(prefix + traits_.expert_names.shared + "_gate.weight", shape));
  gate.rank = 1;
  gate.shape = {hidden};
  WW_ASSIGN_OR_RETURN(layer.shared_gate, target_.vector(gate));
  return {};
}

// [experts, in, out] to one expert's [out, in], in f32.
inline std::vector<float> transposed_expert(const TensorView& all, int64_t expert) {
  const int64_t in = all.shape[1], out = all.shape[2];
  const auto* base = static_cast<const std::byte*>(all.data) + expert * in * out * dtype_info(all.dtype).block_bytes;
  std::vector<float> row(out), result(in * out);
  for (int64_t i = 0; i < in; ++i) {
    dequantize_row(all.dtype, base + i * out * dtype_info(all.dtype).block_bytes, out, row.data());
    for (int64_t o = 0; o < out; ++o) result[o * in + i] = row[o];
  }
  return result;
}

template <typename Target>
Status DecoderBuilder<Target>::fused_experts(const std::string& prefix, Layer& layer) {
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
    typename Target::Expert& expert = layer.experts.emplace_back();
    WW_ASSIGN_OR_RETURN(expert.gate_up, target_.pack({gate, up_part}, traits_.activation, false));
    WW_ASSIGN_OR_RETURN(expert.down, target_.pack({out}, GluActivation::none, false));
  }
  target_.end_experts();
  source_->release(up);
  source_->release(down);
  return {};
}

template <typename Target>
Status DecoderBuilder<Target>::norms(const std::string& prefix, Layer& layer) {
  const int64_t hidden = config_.hidden_size;
  WW_ASSIGN_OR_RETURN(layer.input_norm, vector(prefix + "input_layernorm.weight", hidden));
  if (!traits_.branch_norms) {
    WW_ASSIGN_OR_RETURN(layer.mlp_norm, vector(prefix + "post_attention_layernorm.weight", hidden));
    if (!traits_.layer_norm) return {};
    WW_ASSIGN_OR_RETURN(layer.input_norm_bias, optional_vector(prefix + "input_layernorm.bias", hidden));
    WW_ASSIGN_OR_RETURN(layer.mlp_norm_bias, optional_vector(prefix + "post_attention_layernorm.bias", hidden));
    return {};
  }
  WW_ASSIGN_OR_RETURN(layer.attention_out_norm, vector(prefix + "post_attention_layernorm.weight", hidden));
  WW_ASSIGN_OR_RETURN(layer.mlp_norm, vector(prefix + "pre_feedforward_layernorm.weight", hidden));
  WW_ASSIGN_OR_RETURN(layer.mlp_out_norm, vector(prefix + "post_feedforward_layernorm.weight", hidden));
  return {};
}

template <typename Target>
Status DecoderBuilder<Target>::head(typename Target::Weights& out) {
  const int64_t shape[] = {config_.vocab_size, config_.hidden_size};
  const std::string embedding = "model.embed_tokens.weight";
  const bool tied = config_.tie_word_embeddings || !source_->has("lm_head.weight");
  if (!tied) {
    WW_ASSIGN_OR_RETURN(const LinearPart table, matrix(embedding, shape, false));
    WW_RETURN_IF_ERROR(target_.embedding(table, source_, out));
  }
  WW_ASSIGN_OR_RETURN(out.lm_head, linear({{tied ? embedding : "lm_head.weight", config_.vocab_size,
                                            config_.lm_head_bias ? "lm_head.bias" : ""}},
                                          config_.hidden_size));
  WW_ASSIGN_OR_RETURN(out.final_norm, vector("model.norm.weight", config_.hidden_size));
  if (traits_.layer_norm) {
    WW_ASSIGN_OR_RETURN(out.final_norm_bias, optional_vector("model.norm.bias", config_.hidden_size));
  }
  return {};
}

template <typename Target>
bool DecoderBuilder<Target>::has_experts(int layer) const {
  if (config_.num_experts == 0 || layer < config_.first_k_dense_replace) return false;
  if ((layer + 1) % config_.decoder_sparse_step != 0) return false;
  for (int dense : config_.mlp_only_layers) {
    if (dense == layer) return false;
  }
  return true;
}

template <typename Target>
auto DecoderBuilder<Target>::build() -> Result<typename Target::Weights> {
  typename Target::Weights out;
  // Tables of many positions take as long as many weights do.
  std::vector<std::future<RopeTable>> tables;
  if (config_.rope.type != RopeConfig::Type::none) {
    for (const RopeConfig* rope : {&config_.rope, config_.local_rope ? &*config_.local_rope : nullptr}) {
      if (rope == nullptr) continue;
      tables.push_back(std::async(std::launch::async | std::launch::deferred, [this, rope] {
        const RopeFrequencies f = rope_frequencies(*rope, config_.head_dim, config_.max_position_embeddings,
                                                   options_.max_positions);
        return RopeTable::make(f.inv_freq, options_.max_positions, false, f.attention_factor);
      }));
    }
  }
  WW_RETURN_IF_ERROR(head(out));
  for (int i = 0; i < config_.num_layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    Layer& layer = out.layers.emplace_back();
    WW_RETURN_IF_ERROR(norms(prefix, layer));
    WW_RETURN_IF_ERROR(attention(prefix + "self_attn.", i, layer));
    WW_RETURN_IF_ERROR(has_experts(i) ? experts(prefix + traits_.expert_names.block + ".", layer) : mlp(prefix + "mlp.", layer));
    WW_RETURN_IF_ERROR(source_->intact());  // early: nobody waits for layers that a cut file no longer has
    if (options_.progress) options_.progress(i + 1, config_.num_layers);
  }
  for (std::future<RopeTable>& table : tables) {
    WW_ASSIGN_OR_RETURN(out.ropes.emplace_back(), target_.rope(table.get()));
  }
  return out;
}

}  // namespace warpweave
