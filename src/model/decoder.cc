#include "model/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

namespace warpweave {
namespace {

const float* data_or_null(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

}  // namespace

size_t DecoderWeights::size_bytes() const {
  size_t bytes = lm_head.size_bytes() + (embedding.data ? embedding.size_bytes() : 0);
  for (const DecoderLayer& layer : layers) {
    for (const PackedLinear& part : layer.qkv) bytes += part.size_bytes();
    bytes += layer.o.size_bytes() + layer.gate_up.size_bytes() + layer.down.size_bytes() +
             layer.router.size_bytes() + layer.shared_gate_up.size_bytes() + layer.shared_down.size_bytes();
    for (const MoeExpert& expert : layer.experts) {
      bytes += expert.gate_up.size_bytes() + expert.down.size_bytes();
    }
  }
  for (const RopeTable& rope : ropes) bytes += (rope.cos.size() + rope.sin.size()) * sizeof(float);
  return bytes;
}

DecoderModel::DecoderModel(ModelConfig config, DecoderSpec spec, DecoderWeights weights)
    : config_(std::move(config)), spec_(spec), weights_(std::move(weights)) {
  if (spec_.dual_chunk) dual_chunk_.emplace(*spec_.dual_chunk);
  if (spec_.router.num_experts == 0) return;
  expert_load_ = std::make_unique<ExpertLoad>(static_cast<int>(weights_.layers.size()), spec_.router.num_experts);
  rows_by_expert_.resize(spec_.router.num_experts);
}

void DecoderModel::reserve(int64_t rows) {
  if (rows <= reserved_rows_) return;
  reserved_rows_ = rows;
  int64_t ffn = 0;
  for (const DecoderLayer& layer : weights_.layers) ffn = std::max(ffn, layer.down.in_features());
  const int64_t q_dim = int64_t{spec_.num_q_heads} * spec_.head_dim;
  const int64_t kv_dim = int64_t{spec_.num_kv_heads} * spec_.head_dim;
  x_.resize(rows * spec_.hidden_size);
  h_.resize(rows * spec_.hidden_size);
  branch_.resize(rows * spec_.hidden_size);
  qkv_.resize(rows * (q_dim + 2 * kv_dim));
  attention_out_.resize(rows * q_dim);
  act_.resize(rows * ffn);
}

LinearInput DecoderModel::normed(const Norm& norm, const PackedLinear& next, int64_t rows, ThreadTeam& team) {
  const int64_t cols = spec_.hidden_size;
  const DType dtype = next.preferred_input();
  const float* const x = x_.data() + norm.first_row * cols;
  if (spec_.layer_norm) {
    layer_norm({.x = x, .rows = rows, .cols = cols, .x_stride = cols, .weight = norm.weight.data(),
                .bias = data_or_null(norm.bias), .eps = spec_.norm_eps, .out = h_.data(), .out_dtype = dtype,
                .out_stride = cols},
               team);
  } else {
    rms_norm({.x = x, .rows = rows, .cols = cols, .x_stride = cols, .weight = norm.weight.data(),
              .weight_offset = spec_.norm_weight_offset, .eps = spec_.norm_eps, .out = h_.data(),
              .out_dtype = dtype, .out_stride = cols},
             team);
  }
  return {.data = h_.data(), .dtype = dtype, .rows = rows, .row_stride = cols};
}

// OLMoE: q and k normed in place, each over the width of all its heads.
void DecoderModel::norm_all_heads(const DecoderLayer& layer, int64_t rows, ThreadTeam& team) {
  const int64_t q_dim = int64_t{spec_.num_q_heads} * spec_.head_dim;
  const int64_t kv_dim = int64_t{spec_.num_kv_heads} * spec_.head_dim;
  const int64_t stride = q_dim + 2 * kv_dim;
  const auto norm = [&](float* x, int64_t cols, const std::vector<float>& weight) {
    rms_norm({.x = x, .rows = rows, .cols = cols, .x_stride = stride, .weight = weight.data(),
              .weight_offset = spec_.norm_weight_offset, .eps = spec_.norm_eps, .out = x, .out_stride = stride},
             team);
  };
  norm(qkv_.data(), q_dim, layer.q_norm);
  norm(qkv_.data() + q_dim, kv_dim, layer.k_norm);
}

void DecoderModel::write_kv(int layer, const ForwardBatch& batch, KvCache& cache, ThreadTeam& team) {
  const DecoderLayer& weights = weights_.layers[layer];
  const int64_t q_dim = int64_t{spec_.num_q_heads} * spec_.head_dim;
  const int64_t kv_dim = int64_t{spec_.num_kv_heads} * spec_.head_dim;
  const int64_t stride = q_dim + 2 * kv_dim;
  QkvRowsCall call;
  call.rows = batch.num_tokens;
  call.num_q_heads = spec_.num_q_heads;
  call.num_kv_heads = spec_.num_kv_heads;
  call.head_dim = call.v_head_dim = spec_.head_dim;
  call.q = qkv_.data();
  call.k = qkv_.data() + q_dim;
  call.v = qkv_.data() + q_dim + kv_dim;
  call.q_stride = call.k_stride = call.v_stride = stride;
  if (spec_.wide_qk_norm) {
    norm_all_heads(weights, call.rows, team);
  } else {
    call.q_norm = data_or_null(weights.q_norm);
    call.k_norm = data_or_null(weights.k_norm);
  }
  call.norm_weight_offset = spec_.norm_weight_offset;
  call.norm_eps = spec_.norm_eps;
  call.rope = weights_.ropes.empty() ? nullptr : &weights_.ropes[weights.rope_index];
  call.positions = batch.positions.data();
  call.kv_slots = batch.kv_slots.data();
  call.page_size = batch.page_size;
  call.k_out = cache.k(layer);
  call.v_out = cache.v(layer);
  if (!dual_chunk_) return norm_rope_write_kv(call, team);
  call.positions = dual_chunk_->positions();
  dual_chunk_queries_ = dual_chunk_->norm_rope_write_kv(call, team);
}

void DecoderModel::attend(int layer, const ForwardBatch& batch, KvCache& cache,
                          AttentionBackend& attention) {
  const DecoderLayer& weights = weights_.layers[layer];
  const int64_t q_dim = int64_t{spec_.num_q_heads} * spec_.head_dim;
  AttentionCall call;
  call.layer = layer;
  call.num_q_heads = spec_.num_q_heads;
  call.num_kv_heads = spec_.num_kv_heads;
  call.head_dim = call.v_head_dim = spec_.head_dim;
  call.scale = spec_.attention_scale;
  call.window_left = weights.window_left;
  call.logit_softcap = spec_.attention_softcap;
  call.sinks = data_or_null(weights.sinks);
  call.q = qkv_.data();
  call.q_token_stride = q_dim + 2 * int64_t{spec_.num_kv_heads} * spec_.head_dim;
  call.k = cache.k(layer);
  call.v = cache.v(layer);
  call.out = attention_out_.data();
  call.out_token_stride = q_dim;
  call.dual_chunk = dual_chunk_queries_;
  if (batch.mode == ForwardMode::decode) {
    attention.forward_decode(batch, call);
  } else {
    attention.forward_extend(batch, call);
  }
}

// x += linear(input), through the branch's own norm where the family has one.
void DecoderModel::add_branch(const PackedLinear& linear, const LinearInput& input,
                              const std::vector<float>& out_norm, ThreadTeam& team) {
  const int64_t cols = spec_.hidden_size;
  if (out_norm.empty()) {
    linear.forward(input, {.data = x_.data(), .row_stride = cols, .accumulate = true}, team);
    return;
  }
  linear.forward(input, {.data = branch_.data(), .row_stride = cols}, team);
  rms_norm({.x = branch_.data(), .rows = input.rows, .cols = cols, .x_stride = cols,
            .weight = out_norm.data(), .weight_offset = spec_.norm_weight_offset,
            .eps = spec_.norm_eps, .out = x_.data(), .out_stride = cols, .accumulate = true},
           team);
}

void DecoderModel::experts(int index, int64_t rows, ThreadTeam& team) {
  const DecoderLayer& layer = weights_.layers[index];
  // The router multiplies in f32, so its input is the f32 norm that the experts share.
  normed({layer.mlp_norm, layer.mlp_norm_bias}, layer.router, rows, team);
  const bool shared = !layer.shared_down.empty();
  moe_forward({.x = h_.data(), .rows = rows, .x_stride = spec_.hidden_size, .router = &layer.router,
               .experts = layer.experts, .rule = spec_.router, .correction = data_or_null(layer.router_correction),
               .shared_gate_up = shared ? &layer.shared_gate_up : nullptr,
               .shared_down = shared ? &layer.shared_down : nullptr,
               .shared_gate = data_or_null(layer.shared_gate), .rows_by_expert = rows_by_expert_.data(),
               .y = x_.data(), .y_stride = spec_.hidden_size},
              team);
  if (rows > 0) expert_load_->add(index, rows_by_expert_);
}

void DecoderModel::mlp(int index, int64_t rows, ThreadTeam& team) {
  const DecoderLayer& layer = weights_.layers[index];
  if (!layer.experts.empty()) return experts(index, rows, team);
  const LinearInput input = normed({layer.mlp_norm, layer.mlp_norm_bias}, layer.gate_up, rows, team);
  const int64_t ffn = layer.down.in_features();
  const DType dtype = layer.down.preferred_input();
  layer.gate_up.forward(input, {.data = act_.data(), .dtype = dtype, .row_stride = ffn}, team);
  add_branch(layer.down, {.data = act_.data(), .dtype = dtype, .rows = rows, .row_stride = ffn},
             layer.mlp_out_norm, team);
}

// After the last attention only the rows with wanted logits go on.
void DecoderModel::keep_rows(std::span<const int32_t> rows) {
  const int64_t hidden = spec_.hidden_size;
  const int64_t q_dim = int64_t{spec_.num_q_heads} * spec_.head_dim;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == static_cast<int32_t>(i)) continue;  // rows ascend, so sources lie ahead
    std::memcpy(&x_[i * hidden], &x_[rows[i] * hidden], hidden * sizeof(float));
    std::memcpy(&attention_out_[i * q_dim], &attention_out_[rows[i] * q_dim], q_dim * sizeof(float));
  }
}

void DecoderModel::logits(int64_t first_row, int64_t rows, const LogitsOut& out, ThreadTeam& team) {
  const int64_t vocab = spec_.vocab_size;
  const LinearInput last = normed({weights_.final_norm, weights_.final_norm_bias, first_row}, weights_.lm_head, rows,
                                  team);
  // A cap rounds near-equal logits to equal ones, so the best of a row is known only after it.
  const bool capped = spec_.final_softcap > 0;
  weights_.lm_head.forward(
      last, {.data = out.values, .row_stride = vocab, .best = capped ? nullptr : out.best}, team);
  if (!capped) return;
  softcap_inplace(out.values, spec_.final_softcap, rows * vocab, team);
  if (out.best == nullptr) return;
  team.parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t column = argmax(out.values + r * vocab, vocab);
      out.best[r] = {out.values[r * vocab + column], static_cast<int32_t>(column)};
    }
  });
}

void DecoderModel::look_for_nan(int layer, const char* part, int64_t rows) {
  if (!detects_nan_ || !first_nan_.empty()) return;
  const auto end = x_.begin() + rows * spec_.hidden_size;
  const auto found = std::find_if(x_.begin(), end, [](float x) { return !std::isfinite(x); });
  if (found == end) return;
  first_nan_ = layer < 0 ? std::string("the embeddings")
                         : "layer " + std::to_string(layer) + ", after its " + part;
}

Status DecoderModel::forward(const ForwardBatch& batch, KvCache& cache, AttentionBackend& attention,
                             ThreadTeam& team) {
  int64_t rows = batch.num_tokens;
  if (rows == 0) return {};
  reserve(rows);
  if (dual_chunk_) dual_chunk_->start(batch);
  if (weights_.embedding.data != nullptr) {
    embedding_gather(weights_.embedding, batch.input_ids.data(), rows, spec_.embedding_scale,
                     x_.data(), team);
  } else {
    embedding_gather(weights_.lm_head, batch.input_ids.data(), rows, spec_.embedding_scale,
                     x_.data(), team);
  }
  first_nan_.clear();
  look_for_nan(-1, "", rows);
  const int64_t q_dim = int64_t{spec_.num_q_heads} * spec_.head_dim;
  const int64_t qkv_dim = q_dim + 2 * int64_t{spec_.num_kv_heads} * spec_.head_dim;
  const int num_layers = static_cast<int>(weights_.layers.size());
  for (int i = 0; i < num_layers; ++i) {
    const DecoderLayer& layer = weights_.layers[i];
    const LinearInput input = normed({layer.input_norm, layer.input_norm_bias}, layer.qkv.front(), rows, team);
    float* columns = qkv_.data();
    for (const PackedLinear& part : layer.qkv) {
      part.forward(input, {.data = columns, .row_stride = qkv_dim}, team);
      columns += part.out_features();
    }
    write_kv(i, batch, cache, team);
    if (i == num_layers - 1 && batch.logits_rows.empty()) return {};
    attend(i, batch, cache, attention);
    if (i == num_layers - 1) {
      keep_rows(batch.logits_rows);
      rows = static_cast<int64_t>(batch.logits_rows.size());
    }
    add_branch(layer.o,
               {.data = attention_out_.data(), .dtype = DType::f32, .rows = rows, .row_stride = q_dim},
               layer.attention_out_norm, team);
    look_for_nan(i, "attention", rows);
    mlp(i, rows, team);
    look_for_nan(i, "MLP", rows);
  }
  return {};
}

}  // namespace warpweave
