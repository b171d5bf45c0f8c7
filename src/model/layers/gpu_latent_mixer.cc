#include "model/layers/gpu_latent_mixer.h"

#include "model/layers/attention_call.h"
#include "model/layers/gpu_residual.h"
#include "ops/cuda/latent.h"

namespace warpweave {
namespace {

int64_t element_bytes(DType dtype) { return static_cast<int64_t>(dtype_info(dtype).block_bytes); }

void* elements_on(void* data, int64_t elements, DType dtype) {
  return static_cast<std::byte*>(data) + elements * element_bytes(dtype);
}
const void* elements_on(const void* data, int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(data) + elements * element_bytes(dtype);
}

}  // namespace

Status GpuLatentWorkspace::reserve(const LatentSpec& latent, DType dtype, int64_t tokens, int64_t kept_rows,
                                   GpuWorkspace& workspace) {
  spec = latent;
  const auto get = [&](void*& pointer, int64_t count) { workspace.get(pointer, count, dtype_info(dtype).block_bytes); };
  get(in, tokens * spec.in_dim());
  if (spec.dims.q_rank > 0) {
    get(q_normed, tokens * spec.dims.q_rank);
    get(q, tokens * spec.q_dim());
  }
  get(latent_q, tokens * spec.latent_q_dim());
  get(latent_out[0], tokens * spec.latent_out_dim());
  get(latent_out[1], kept_rows * spec.latent_out_dim());
  get(values, tokens * spec.value_dim());
  get(kept_values, kept_rows * spec.value_dim());
  prefill = std::make_unique<GpuLatentPrefill>();
  return prefill->reserve(spec, dtype, tokens, workspace);
}

void GpuLatentWorkspace::keep_bits() {
  batch_invariant = true;
  prefill->take(LatentForm::absorbed);
}

// The first GEMMs.
Result<GpuLatentQueries> GpuLatentMixer::queries(const GpuLayerCall& call) const {
  const LatentSpec& spec = w_.spec;
  GpuResidual& x = call.x;
  WW_RETURN_IF_ERROR(x.run_normed(weights_.norms.in, {.linear = &weights_.in.front(),
                                                      .rows = x.gemm_rows(),
                                                      .y = w_.in,
                                                      .y_dtype = x.dtype(),
                                                      .y_stride = spec.in_dim()}));
  if (spec.dims.q_rank == 0) return GpuLatentQueries{w_.in, spec.in_dim()};
  gpu::norm_rows({.x = w_.in, .x_stride = spec.in_dim(), .dtype = x.dtype(), .rows = x.rows(), .cols = spec.dims.q_rank,
                  .weight = weights_.q_norm.data, .eps = LatentSpec::kInnerNormEps, .out = w_.q_normed},
                 x.stream());
  WW_RETURN_IF_ERROR(x.gemm().run({.linear = &weights_.q_up, .x = w_.q_normed, .rows = x.gemm_rows(), .y = w_.q,
                                   .y_dtype = x.dtype(), .y_stride = spec.q_dim()},
                                  x.stream()));
  return GpuLatentQueries{w_.q, spec.q_dim()};
}

// Norms the latent, rotates the rope parts, those of the queries into their places beside the latent, writes the cache.
gpu::LatentRowsCall GpuLatentMixer::token_rows(const GpuLayerCall& call, const GpuLatentQueries& queries) const {
  const LatentSpec& spec = w_.spec;
  const LatentConfig& dims = spec.dims;
  const DType dtype = call.x.dtype();
  gpu::LatentRowsCall rows;
  rows.dtype = dtype;
  rows.rows = call.x.rows();
  rows.num_heads = spec.num_heads;
  rows.kv_rank = dims.kv_rank;
  rows.rope_dim = dims.rope_dim;
  rows.q_rope = elements_on(queries.data, dims.nope_dim, dtype);
  rows.in_place = w_.prefill->plan().expands;
  rows.q_stride = queries.stride;
  rows.q_head_stride = dims.qk_dim();
  rows.q_out = elements_on(w_.latent_q, dims.kv_rank, dtype);
  rows.q_out_stride = spec.latent_q_dim();
  rows.q_out_head_stride = dims.token_dim();
  rows.token = elements_on(w_.in, spec.in_dim() - dims.token_dim(), dtype);
  rows.token_stride = spec.in_dim();
  rows.latent_norm = weights_.latent_norm.data;
  rows.norm_eps = LatentSpec::kInnerNormEps;
  if (rope_ != nullptr) {
    rows.cos = rope_->cos;
    rows.sin = rope_->sin;
    rows.interleaved = rope_->interleaved;
  }
  rows.positions = call.batch.device.positions;
  rows.kv_slots = call.batch.device.kv_slots;
  rows.page_size = call.batch.page_size;
  rows.out = call.cache.k(call.layer);
  return rows;
}

// The queries' parts without rotation into the latent space.
gpu::HeadGemmCall GpuLatentMixer::absorption(const GpuLatentQueries& queries, const Rows& rows, DType dtype) const {
  const LatentSpec& spec = w_.spec;
  return {.weight = weights_.heads.into_latent.weight,
          .weight_head_stride = int64_t{spec.dims.kv_rank} * spec.dims.nope_dim,
          .dtype = dtype,
          .rows = rows.count,
          .num_heads = spec.num_heads,
          .in_dim = spec.dims.nope_dim,
          .out_dim = spec.dims.kv_rank,
          .x = elements_on(queries.data, rows.begin * queries.stride, dtype),
          .x_stride = queries.stride,
          .x_head_stride = spec.dims.qk_dim(),
          .y = elements_on(w_.latent_q, rows.begin * spec.latent_q_dim(), dtype),
          .y_stride = spec.latent_q_dim(),
          .y_head_stride = spec.dims.token_dim(),
          .by_rows = !w_.batch_invariant};
}

Status GpuLatentMixer::attend_latent(const GpuLayerCall& call, const ForwardBatch& batch) const {
  const LatentSpec& spec = w_.spec;
  AttentionCall attention = latent_attention_call(spec, call.cache, call.layer);
  attention.q = w_.latent_q;
  attention.q_dtype = attention.out_dtype = call.x.dtype();
  attention.out = w_.latent_out[0];
  attention.earlier_kv_settled = true;
  return attend(call.attention, batch, attention);
}

// What the heads found, back from the latent space.
void GpuLatentMixer::values_of(const GpuLayerCall& call, const void* latent_out, const Rows& rows) const {
  const LatentSpec& spec = w_.spec;
  const LatentConfig& dims = spec.dims;
  const DType dtype = call.x.dtype();
  gpu::head_gemm({.weight = elements_on(weights_.heads.up.weight, int64_t{dims.qk_dim()} * dims.kv_rank, dtype),
                  .weight_head_stride = int64_t{dims.qk_dim() + dims.v_dim} * dims.kv_rank, .dtype = dtype,
                  .rows = rows.count, .num_heads = spec.num_heads, .in_dim = dims.kv_rank, .out_dim = dims.v_dim,
                  .x = elements_on(latent_out, rows.begin * spec.latent_out_dim(), dtype),
                  .x_stride = spec.latent_out_dim(), .x_head_stride = dims.kv_rank,
                  .y = elements_on(w_.values, rows.begin * spec.value_dim(), dtype), .y_stride = spec.value_dim(),
                  .y_head_stride = dims.v_dim, .by_rows = !w_.batch_invariant},
                     call.x.stream());
}

Status GpuLatentMixer::forward_absorbed(const GpuLayerCall& call, const GpuLatentQueries& queries) {
  GpuResidual& x = call.x;
  gpu::write_latent_and_absorb(token_rows(call, queries), absorption(queries, {0, x.rows()}, x.dtype()), x.stream());
  WW_RETURN_IF_ERROR(attend_latent(call, call.batch));
  const void* latent_out = w_.latent_out[0];
  if (call.last_mixer && x.keep(call.batch)) {
    gpu::gather_rows({w_.latent_out[0], call.batch.device.logits_rows, x.rows(),
                     w_.spec.latent_out_dim() * element_bytes(x.dtype()), w_.latent_out[1]}, x.stream());
    latent_out = w_.latent_out[1];
  }
  values_of(call, latent_out, {0, x.rows()});
  return x.add(weights_.o, w_.values, weights_.norms.out);
}

// Requests of one new token stay absorbed; their rows are written first, since others may stand between them.
Status GpuLatentMixer::forward_expanded(const GpuLayerCall& call, const GpuLatentQueries& queries) {
  GpuResidual& x = call.x;
  gpu::norm_rope_write_latent(token_rows(call, queries), x.stream());
  const LatentPrefillPlan& plan = w_.prefill->plan();
  const Rows singles = {plan.singles_begin, plan.singles_end - plan.singles_begin};
  if (singles.count > 0) {
    gpu::head_gemm(absorption(queries, singles, x.dtype()), x.stream());
    ForwardBatch batch = call.batch;
    batch.max_q_len = 1;
    WW_RETURN_IF_ERROR(attend_latent(call, batch));
    values_of(call, w_.latent_out[0], singles);
  }
  WW_RETURN_IF_ERROR(w_.prefill->forward(call, weights_, queries, w_.values));
  const void* values = w_.values;
  if (call.last_mixer && x.keep(call.batch)) {
    gpu::gather_rows({w_.values, call.batch.device.logits_rows, x.rows(),
                      w_.spec.value_dim() * element_bytes(x.dtype()), w_.kept_values}, x.stream());
    values = w_.kept_values;
  }
  return x.add(weights_.o, values, weights_.norms.out);
}

Status GpuLatentMixer::forward(const GpuLayerCall& call) {
  WW_ASSIGN_OR_RETURN(const GpuLatentQueries q, queries(call));
  if (call.last_mixer && call.batch.logits_rows.empty()) {
    gpu::norm_rope_write_latent(token_rows(call, q), call.x.stream());
    return {};
  }
  return w_.prefill->plan().expands ? forward_expanded(call, q) : forward_absorbed(call, q);
}

}  // namespace warpweave
