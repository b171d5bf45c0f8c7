#include "model/layers/attention_mixer.h"

#include <cassert>
#include <cmath>

#include "model/layers/attention_call.h"
#include "model/layers/residual.h"
#include "ops/elementwise.h"

namespace warpweave {

namespace {

// out *= sigmoid(gate), row by row.
void gate_rows(const float* gate, int64_t gate_stride, float* out, int64_t cols, const LayerCall& call) {
  call.x.team().parallel_for(call.x.rows(), 4, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const row_gate = gate + r * gate_stride;
      float* const row = out + r * cols;
      for (int64_t c = 0; c < cols; ++c) row[c] /= 1 + std::exp(-row_gate[c]);
    }
  });
}

}  // namespace

void AttentionWorkspace::start(const ForwardBatch& batch) {
  const auto rows = static_cast<size_t>(batch.num_tokens);
  if (qkv_.size() < rows * spec_.qkv_dim()) qkv_.resize(rows * spec_.qkv_dim());
  if (out_.size() < rows * spec_.q_dim()) out_.resize(rows * spec_.q_dim());
  if (dual_chunk_) dual_chunk_->start(batch);
  for (auto& [table, angles] : angles_) angles.positions = 0;
}

const RopeTable* AttentionWorkspace::angles_of_rows(const RopeTable& table, const ForwardBatch& batch) {
  assert(!spec_.rope_axes.empty() && !dual_chunk_);
  RopeTable& angles = angles_[&table];
  if (angles.positions == batch.num_tokens) return &angles;
  gather_rope_rows(table, spec_.rope_axes, batch.rope_positions.data(), batch.num_tokens, angles);
  while (std::ssize(row_numbers_) < batch.num_tokens) row_numbers_.push_back(static_cast<int32_t>(row_numbers_.size()));
  return &angles;
}

// OLMoE: q and k normed in place, each over the width of all its heads.
void AttentionMixer::norm_all_heads(const LayerCall& call) {
  const AttentionSpec& spec = w_.spec_;
  const NormSpec& rule = call.x.norm_spec();
  const int64_t stride = spec.qkv_dim();
  const auto norm = [&](float* x, int64_t cols, const std::vector<float>& weight) {
    rms_norm({.x = x, .rows = call.x.rows(), .cols = cols, .x_stride = stride, .weight = weight.data(),
              .weight_offset = rule.weight_offset, .eps = rule.eps, .out = x, .out_stride = stride},
             call.x.team());
  };
  norm(w_.qkv_.data(), spec.q_dim(), weights_.q_norm);
  norm(w_.qkv_.data() + spec.q_dim(), spec.kv_dim(), weights_.k_norm);
}

// Norms and rotates q and k and writes K and V. Returns the other forms of q where the rows need them.
const DualChunkQueries* AttentionMixer::write_kv(const LayerCall& call) {
  const AttentionSpec& spec = w_.spec_;
  QkvRowsCall rows;
  rows.rows = call.x.rows();
  rows.num_q_heads = spec.num_q_heads;
  rows.num_kv_heads = spec.num_kv_heads;
  rows.head_dim = rows.v_head_dim = spec.head_dim;
  rows.q = w_.qkv_.data();
  rows.k = rows.q + spec.q_dim();
  rows.v = rows.k + spec.kv_dim();
  rows.q_stride = rows.k_stride = rows.v_stride = spec.qkv_dim();
  if (spec.wide_qk_norm) {
    norm_all_heads(call);
  } else {
    rows.q_norm = data_or_null(weights_.q_norm);
    rows.k_norm = data_or_null(weights_.k_norm);
  }
  rows.norm_after_rope = spec.qk_norm_after_rope;
  rows.norm_weight_offset = call.x.norm_spec().weight_offset;
  rows.norm_eps = call.x.norm_spec().eps;
  rows.rope = rope_;
  rows.positions = call.batch.positions.data();
  if (rope_ != nullptr && !call.batch.rope_positions.empty()) {
    rows.rope = w_.angles_of_rows(*rope_, call.batch);
    rows.positions = w_.row_numbers_.data();
  }
  rows.kv_slots = call.batch.kv_slots.data();
  rows.page_size = call.batch.page_size;
  rows.k_out = call.cache.k(call.layer);
  rows.v_out = call.cache.v(call.layer);
  if (!w_.dual_chunk_) {
    norm_rope_write_kv(rows, call.x.team());
    return nullptr;
  }
  rows.positions = w_.dual_chunk_->positions();
  return w_.dual_chunk_->norm_rope_write_kv(rows, call.x.team());
}

Status AttentionMixer::forward(const LayerCall& call) {
  const AttentionSpec& spec = w_.spec_;
  const LinearInput input = call.x.normed_beside(weights_.norms.in, weights_.qkv.front());
  const LinearAddend adapted = call.x.adapted({call.layer, LoraSite::qkv}, input, spec.qkv_dim());
  int64_t column = 0;
  for (const PackedLinear& part : weights_.qkv) {
    part.forward(input,
                 {.data = w_.qkv_.data() + column, .row_stride = spec.qkv_dim(), .addend = adapted.from_column(column)},
                 call.x.team());
    column += part.out_features();
  }
  const DualChunkQueries* const dual_chunk = write_kv(call);
  const std::span<const int32_t> wanted = call.batch.logits_rows;
  if (call.last_mixer && wanted.empty()) return {};

  AttentionCall attention = attention_call(spec, plan_, call.cache, call.layer);
  attention.sinks = data_or_null(weights_.sinks);
  attention.q = w_.qkv_.data();
  attention.out = w_.out_.data();
  attention.dual_chunk = dual_chunk;
  WW_RETURN_IF_ERROR(attend(call.attention, call.batch, attention));
  if (call.last_mixer) {
    keep_rows(w_.out_.data(), spec.q_dim(), wanted);
    if (spec.output_gate) keep_rows(w_.qkv_.data(), spec.qkv_dim(), wanted);
    call.x.keep(wanted);
  }
  if (spec.output_gate) {
    gate_rows(w_.qkv_.data() + spec.qkv_dim() - spec.gate_dim(), spec.qkv_dim(), w_.out_.data(), spec.q_dim(), call);
  }
  const LinearInput heads = {.data = w_.out_.data(), .rows = call.x.rows(), .row_stride = spec.q_dim()};
  call.x.add(weights_.o, heads, weights_.norms.out,
             call.x.adapted({call.layer, LoraSite::o}, heads, call.x.hidden_size()));
  call.x.renorm(weights_.norms.after);
  return {};
}

}  // namespace warpweave
