#include "model/layers/gpu_attention_mixer.h"

#include "model/dual_chunk.h"
#include "model/layers/attention_call.h"
#include "model/layers/gpu_residual.h"
#include "ops/cuda/norms.h"

namespace warpweave {

void GpuAttentionWorkspace::reserve(const AttentionSpec& attention, DType dtype, int64_t tokens, int64_t kept_rows,
                                    GpuWorkspace& workspace) {
  spec = attention;
  const size_t element = dtype_info(dtype).block_bytes;
  workspace.get(out[0], tokens * spec.q_dim(), element);
  workspace.get(out[1], kept_rows * spec.q_dim(), element);
  workspace.get(qkv, tokens * spec.qkv_dim(), element);
  places.set_axes(spec.rope_axes);
  if (!spec.dual_chunk) return;
  workspace.get(q_succ, tokens * spec.q_dim(), element);
  workspace.get(q_inter, tokens * spec.q_dim(), element);
  dual_chunk = {q_succ, q_inter, spec.q_dim(), DualChunkRope(*spec.dual_chunk).chunk_len()};
}

// OLMoE: q and k normed in place, each over the width of all its heads.
void GpuAttentionMixer::norm_all_heads(const GpuLayerCall& call) const {
  const AttentionSpec& spec = w_.spec;
  const DType dtype = call.x.dtype();
  gpu::WideNormCall norm = {.x = w_.qkv, .dtype = dtype, .row_stride = spec.qkv_dim(), .rows = call.x.rows(),
                            .cols = spec.q_dim(), .weight = weights_.q_norm.data, .eps = call.x.norm_spec().eps};
  gpu::wide_norm(norm, call.x.stream());
  norm.x = static_cast<std::byte*>(w_.qkv) + spec.q_dim() * dtype_info(dtype).block_bytes;
  norm.cols = spec.kv_dim();
  norm.weight = weights_.k_norm.data;
  gpu::wide_norm(norm, call.x.stream());
}

gpu::QkvRowsCall GpuAttentionMixer::qkv_rows(const GpuLayerCall& call) const {
  const AttentionSpec& spec = w_.spec;
  gpu::QkvRowsCall rows;
  rows.qkv = w_.qkv;
  rows.dtype = call.x.dtype();
  rows.rows = call.x.rows();
  rows.num_q_heads = spec.num_q_heads;
  rows.num_kv_heads = spec.num_kv_heads;
  rows.head_dim = spec.head_dim;
  rows.row_stride = spec.qkv_dim();
  if (!spec.wide_qk_norm) {
    rows.q_norm = weights_.q_norm.data;
    rows.k_norm = weights_.k_norm.data;
  }
  rows.norm_after_rope = spec.qk_norm_after_rope;
  rows.norm_weight_offset = call.x.norm_spec().weight_offset;
  rows.norm_eps = call.x.norm_spec().eps;
  if (rope_ != nullptr) {
    rows.cos = rope_->cos;
    rows.sin = rope_->sin;
    rows.rotary_dim = rope_->rotary_dim;
    rows.interleaved = rope_->interleaved;
  }
  rows.positions = call.batch.device.positions;
  rows.kv_slots = call.batch.device.kv_slots;
  rows.page_size = call.batch.page_size;
  rows.k_out = call.cache.k(call.layer);
  rows.v_out = call.cache.v(call.layer);
  if (spec.dual_chunk) {
    rows.dual_chunk = {w_.q_succ, w_.q_inter, w_.dual_chunk.chunk_len, DualChunkRope(*spec.dual_chunk).farthest(),
                       spec.dual_chunk->original_max_positions};
  }
  return rows;
}

// Qwen3-Next: what a head found, times sigmoid(its gate).
void GpuAttentionMixer::gate(const GpuLayerCall& call) const {
  const AttentionSpec& spec = w_.spec;
  const auto* const gates = static_cast<const std::byte*>(w_.qkv) +
                            (spec.qkv_dim() - spec.gate_dim()) * dtype_info(call.x.dtype()).block_bytes;
  gpu::gate_rows({.x = w_.out[0], .dtype = call.x.dtype(), .rows = call.x.rows(), .cols = spec.q_dim(), .gate = gates,
                  .gate_stride = spec.qkv_dim()},
                 call.x.stream());
}

Status GpuAttentionMixer::forward(const GpuLayerCall& call) {
  const AttentionSpec& spec = w_.spec;
  GpuResidual& x = call.x;
  const gpu::GpuLinear& qkv = weights_.qkv.front();
  gpu::GemmCall qkv_gemm = {.linear = &qkv, .rows = x.gemm_rows(), .y = w_.qkv, .y_dtype = x.dtype(),
                            .y_stride = qkv.out_features};
  gpu::QkvRowsCall rows = qkv_rows(call);
  const bool q_k_v_alone = !spec.wide_qk_norm && !spec.output_gate;  // are all that reads the GEMM
  if (q_k_v_alone && gpu::rope_takes_partials(rows)) rows.partials = x.leave_partials(qkv_gemm);
  WW_RETURN_IF_ERROR(x.run_normed_beside(weights_.norms.in, qkv_gemm, LoraPlace{call.layer, LoraSite::qkv}));
  if (spec.wide_qk_norm) norm_all_heads(call);
  gpu::norm_rope_write_kv(rows, w_.places, x.stream());
  if (call.last_mixer && call.batch.logits_rows.empty()) return {};

  AttentionCall attention = attention_call(spec, plan_, call.cache, call.layer);
  attention.sinks = weights_.sinks.data;
  attention.q = w_.qkv;
  attention.q_dtype = attention.out_dtype = x.dtype();
  attention.out = w_.out[0];
  attention.earlier_kv_settled = true;
  if (spec.dual_chunk) attention.dual_chunk = &w_.dual_chunk;
  WW_RETURN_IF_ERROR(attend(call.attention, call.batch, attention));

  if (spec.output_gate) gate(call);

  const void* out = w_.out[0];
  if (call.last_mixer && x.keep(call.batch)) {
    const int64_t row_bytes = spec.q_dim() * dtype_info(x.dtype()).block_bytes;
    gpu::gather_rows({w_.out[0], call.batch.device.logits_rows, x.rows(), row_bytes, w_.out[1]}, x.stream());
    out = w_.out[1];
  }
  return x.add(weights_.o, out, weights_.norms.out, LoraPlace{call.layer, LoraSite::o});
}

}  // namespace warpweave
