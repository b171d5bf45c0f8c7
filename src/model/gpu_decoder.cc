#include "model/gpu_decoder.h"

#include <algorithm>
#include <string>

#include "device/cuda/cuda_check.h"
#include "model/families/family.h"
#include "ops/cuda/norms.h"
#include "ops/cuda/small_gemm.h"

namespace warpweave {
namespace {

// Prefill products run over a multiple of this many rows, so that few shapes exist for which
// algorithms must be chosen; the rows past the end are scratch.
constexpr int64_t kProductRows = 64;

// What memory delivers while a small kernel runs.
constexpr int64_t kPrefetchedBytes = int64_t{12} << 20;
// Of a step with prefill: with more rows products take longer than their weights take to arrive.
constexpr int64_t kPrefetchedRows = 128;

int64_t round_up(int64_t rows) { return (rows + kProductRows - 1) / kProductRows * kProductRows; }

}  // namespace

Result<std::unique_ptr<GpuDecoder>> GpuDecoder::create(const ModelConfig& config, const BuildOptions& options,
                                                       GpuDecoderWeights weights, const GpuDecoderLimits& limits) {
  WW_RETURN_IF_ERROR(check_gpu_model(config));
  WW_ASSIGN_OR_RETURN(const FamilyTraits traits, family_traits(config));
  DecoderSpec spec = decoder_spec(config, traits);
  spec.dual_chunk = dual_chunk_in_use(config, options.max_positions);
  std::unique_ptr<GpuDecoder> out(new GpuDecoder(config, std::move(spec), options.dtype, std::move(weights)));
  WW_ASSIGN_OR_RETURN(out->gemm_, gpu::GpuGemm::create());
  if (limits.batch_invariant) out->gemm_->set_batch_invariant();
  WW_RETURN_IF_ERROR(out->reserve(limits));
  return out;
}

GpuDecoder::GpuDecoder(const ModelConfig& config, DecoderSpec spec, DType dtype, GpuDecoderWeights weights)
    : config_(config), spec_(spec), dtype_(dtype), weights_(std::move(weights)) {}

Status GpuDecoder::reserve(const GpuDecoderLimits& limits) {
  const size_t element = dtype_info(dtype_).block_bytes;
  const int64_t tokens = round_up(limits.max_tokens), logits_rows = round_up(limits.max_logits_rows);
  const int64_t hidden = spec_.hidden_size;
  const int64_t q_dim = int64_t{spec_.num_q_heads} * spec_.head_dim;
  const int64_t kv_dim = int64_t{spec_.num_kv_heads} * spec_.head_dim;
  // A mixture may have dense layers, too, and experts that every row passes.
  const int64_t inner = tokens * std::max(weights_.has_dense_layers() ? config_.intermediate_size : 0,
                                          config_.shared_expert_intermediate_size);
  Status failed;
  const auto get = [&]<typename T>(T*& pointer, int64_t count, size_t size_bytes) {
    if (!failed.ok() || count == 0) return;
    auto memory = workspace_memory_.allocate(count * size_bytes, "activations; lower --chunked-prefill-size");
    if (memory.ok()) {
      pointer = static_cast<T*>(*memory);
    } else {
      failed = memory.status();
    }
  };
  get(w_.x[0], tokens * hidden, sizeof(float));
  get(w_.x[1], logits_rows * hidden, sizeof(float));
  get(w_.attention_out[0], tokens * q_dim, element);
  get(w_.attention_out[1], logits_rows * q_dim, element);
  get(w_.h, tokens * hidden, element);
  get(w_.qkv, tokens * (q_dim + 2 * kv_dim), element);
  if (spec_.dual_chunk) {
    get(w_.q_succ, tokens * q_dim, element);
    get(w_.q_inter, tokens * q_dim, element);
    const DualChunkRope rope(*spec_.dual_chunk);
    dual_chunk_ = {w_.q_succ, w_.q_inter, q_dim, rope.chunk_len()};
  }
  get(w_.gate_up, 2 * inner, element);
  get(w_.act, inner, element);
  const int64_t widest = std::max(hidden, q_dim + 2 * kv_dim);
  get(w_.partials, gpu::kMostPartialRows * gpu::kMostPartials * widest, sizeof(float));
  const bool branch_norms = !weights_.layers.empty() && !weights_.layers[0].mlp_out_norm.empty();
  int64_t fp8_depth = 0;
  for (const GpuDecoderLayer& layer : weights_.layers) {
    for (const gpu::GpuLinear* linear : {&layer.qkv.front(), &layer.o, &layer.gate_up, &layer.down, &layer.shared_gate_up,
                                         &layer.shared_down}) {
      if (linear->dtype != DType::fp8_e4m3) continue;
      fp8_depth = std::max(fp8_depth, linear->in_features);
      fp8_blocks_ |= linear->scaling == gpu::Fp8Scaling::block;
    }
  }
  if (fp8_depth > 0) WW_RETURN_IF_ERROR(gemm_->reserve_fp8(tokens, fp8_depth));
  if (branch_norms) get(w_.branch, tokens * hidden, sizeof(float));
  if (config_.num_experts == 0 || !failed.ok()) return failed;
  get(w_.h_f32, tokens * hidden, sizeof(float));
  WW_RETURN_IF_ERROR(failed);
  const GpuExperts::Options options = {.spec = spec_, .dtype = dtype_, .max_rows = tokens, .ffn = config_.moe_intermediate_size,
                                       .batch_invariant = limits.batch_invariant, .dice = limits.routing_dice};
  WW_ASSIGN_OR_RETURN(experts_, GpuExperts::create(options, weights_.expert_layers, workspace_memory_));
  return failed;
}

// Decode steps have few sizes as it is; 8-bit operands with scales of blocks want rows by fours.
int64_t GpuDecoder::product_rows(int64_t rows) const {
  if (fp8_blocks_ && rows > gpu::kSmallGemmFp8Rows && (decoding_ || rows < kProductRows)) return (rows + 3) / 4 * 4;
  return decoding_ || rows < kProductRows ? rows : round_up(rows);
}

// What a small kernel of a step with few rows asks for ahead of the product that follows it. Kernels of our own
// do so by themselves; many rows leave memory no idle time.
gpu::WeightPrefetch GpuDecoder::ahead(const gpu::GpuLinear& next, int64_t rows) const {
  if ((!decoding_ && rows > kPrefetchedRows) || rows <= gpu::kSmallGemmRows || next.empty()) return {};
  const bool glu = next.glu != GluActivation::none;
  const int64_t columns = glu ? next.out_features / 2 : next.out_features;
  if (!gemm_->runs_library({.linear = &next, .rows = rows, .y_dtype = dtype_, .y_stride = columns, .fused_glu = glu})) return {};
  gpu::WeightPrefetch out;
  out.data = next.weight;
  out.rows = next.out_features;
  out.row_bytes = next.in_features * dtype_info(next.dtype).block_bytes;
  out.prefetched_bytes = std::min(kPrefetchedBytes / out.rows, out.row_bytes) / 128 * 128;
  return out;
}

void GpuDecoder::normed(const Norm& norm, const gpu::WeightPrefetch& prefetch, int64_t rows, void* stream,
                        bool exact_copy) {
  if (spec_.layer_norm) {
    return gpu::layer_norm({.x = w_.x[current_], .rows = rows, .cols = spec_.hidden_size, .weight = norm.weight.data,
                            .bias = norm.bias.data, .eps = spec_.norm_eps, .out = w_.h, .out_dtype = dtype_,
                            .out_f32 = exact_copy ? w_.h_f32 : nullptr},
                           stream);
  }
  gpu::rms_norm({.x = w_.x[current_], .partials = pending_, .rows = rows, .cols = spec_.hidden_size,
                 .weight = norm.weight.data, .weight_offset = spec_.norm_weight_offset, .eps = spec_.norm_eps,
                 .out = w_.h, .out_dtype = dtype_,
                 .out_f32 = exact_copy ? w_.h_f32 : nullptr, .prefetch = prefetch},
                stream);
  pending_ = {};
}

// A product of the normed residual stream; where the kernel can, it norms the rows itself.
Status GpuDecoder::run_normed(const Norm& norm, gpu::GemmCall call, int64_t rows, void* stream) {
  call.norm = {w_.x[current_], norm.weight.data, spec_.norm_weight_offset, spec_.norm_eps};
  if (spec_.layer_norm || !gemm_->takes_fused(call)) {
    normed(norm, ahead(*call.linear, rows), rows, stream);
    call.norm = {};
    call.x = w_.h;
  }
  return gemm_->run(call, stream);
}

// OLMoE: q and k normed in place, each over the width of all its heads.
void GpuDecoder::norm_all_heads(const GpuDecoderLayer& layer, int64_t rows, void* stream) {
  const int64_t q_dim = int64_t{spec_.num_q_heads} * spec_.head_dim, kv_dim = int64_t{spec_.num_kv_heads} * spec_.head_dim;
  gpu::WideNormCall call = {.x = w_.qkv, .dtype = dtype_, .row_stride = q_dim + 2 * kv_dim, .rows = rows, .cols = q_dim,
                            .weight = layer.q_norm.data, .eps = spec_.norm_eps};
  gpu::wide_norm(call, stream);
  call.x = static_cast<std::byte*>(w_.qkv) + q_dim * dtype_info(dtype_).block_bytes;
  call.cols = kv_dim;
  call.weight = layer.k_norm.data;
  gpu::wide_norm(call, stream);
}

// Has the product leave partial sums, if it can.
gpu::PartialSums GpuDecoder::leave_partials(gpu::GemmCall& call) {
  const int splits = gemm_->partial_splits(call);
  if (splits == 0) return {};
  call.partials = w_.partials;
  return {w_.partials, splits, call.rows * call.linear->out_features};
}

gpu::QkvRowsCall GpuDecoder::qkv_rows(int layer, const ForwardBatch& batch, GpuKvCache& cache) const {
  const GpuDecoderLayer& weights = weights_.layers[layer];
  gpu::QkvRowsCall call;
  call.qkv = w_.qkv;
  call.dtype = dtype_;
  call.rows = batch.num_tokens;
  call.num_q_heads = spec_.num_q_heads;
  call.num_kv_heads = spec_.num_kv_heads;
  call.head_dim = spec_.head_dim;
  if (!spec_.wide_qk_norm) {
    call.q_norm = weights.q_norm.data;
    call.k_norm = weights.k_norm.data;
  }
  call.norm_weight_offset = spec_.norm_weight_offset;
  call.norm_eps = spec_.norm_eps;
  if (!weights_.ropes.empty()) {
    const GpuRope& rope = weights_.ropes[weights.rope_index];
    call.cos = rope.cos;
    call.sin = rope.sin;
    call.rotary_dim = rope.rotary_dim;
    call.interleaved = rope.interleaved;
  }
  call.positions = batch.device.positions;
  call.kv_slots = batch.device.kv_slots;
  call.page_size = batch.page_size;
  call.k_out = cache.k(layer);
  call.v_out = cache.v(layer);
  if (spec_.dual_chunk) {
    call.dual_chunk = {w_.q_succ, w_.q_inter, dual_chunk_.chunk_len, DualChunkRope(*spec_.dual_chunk).farthest(),
                       spec_.dual_chunk->original_max_positions};
  }
  return call;
}

void GpuDecoder::attend(int layer, const ForwardBatch& batch, GpuKvCache& cache, AttentionBackend& attention) {
  const GpuDecoderLayer& weights = weights_.layers[layer];
  const int64_t q_dim = int64_t{spec_.num_q_heads} * spec_.head_dim;
  AttentionCall call;
  call.layer = layer;
  call.num_q_heads = spec_.num_q_heads;
  call.num_kv_heads = spec_.num_kv_heads;
  call.head_dim = call.v_head_dim = spec_.head_dim;
  call.scale = spec_.attention_scale;
  call.window_left = weights.window_left;
  call.logit_softcap = spec_.attention_softcap;
  call.sinks = weights.sinks.data;
  call.q = w_.qkv;
  call.q_dtype = call.out_dtype = dtype_;
  call.q_token_stride = q_dim + 2 * int64_t{spec_.num_kv_heads} * spec_.head_dim;
  call.k = cache.k(layer);
  call.v = cache.v(layer);
  call.out = w_.attention_out[current_];
  call.out_token_stride = q_dim;
  call.earlier_kv_settled = true;
  if (spec_.dual_chunk) call.dual_chunk = &dual_chunk_;
  if (batch.mode == ForwardMode::decode) {
    attention.forward_decode(batch, call);
  } else {
    attention.forward_extend(batch, call);
  }
}

// x += linear(input), through the branch's own norm where the family has one.
Status GpuDecoder::add_branch(const gpu::GpuLinear& linear, const void* input, const GpuVector& out_norm,
                              int64_t rows, void* stream) {
  const int64_t cols = spec_.hidden_size;
  const bool direct = out_norm.empty();
  gpu::GemmCall call = {.linear = &linear, .x = input, .rows = product_rows(rows), .y = direct ? w_.x[current_] : w_.branch,
                        .y_dtype = DType::f32, .y_stride = cols};
  if (direct && cols <= gpu::kNormPartialCols && !spec_.layer_norm) pending_ = leave_partials(call);
  call.accumulate = direct && pending_.data == nullptr;
  WW_RETURN_IF_ERROR(gemm_->run(call, stream));
  if (direct) return {};
  gpu::rms_norm({.x = w_.branch, .rows = rows, .cols = cols, .weight = out_norm.data,
                 .weight_offset = spec_.norm_weight_offset, .eps = spec_.norm_eps, .out = w_.x[current_],
                 .out_dtype = DType::f32, .accumulate = true},
                stream);
  return {};
}

// act = glu(product), of normed rows of the residual stream where the call has no x.
Status GpuDecoder::glu_product(const GpuDecoderLayer& layer, gpu::GemmCall call, int64_t rows, void* stream) {
  const bool normed = call.x == nullptr;
  const int64_t ffn = call.linear->out_features / 2;
  gpu::GemmCall fused = call;
  fused.rows = rows;
  fused.y = w_.act;
  fused.y_dtype = dtype_;
  fused.y_stride = ffn;
  fused.fused_glu = true;
  const Norm norm{layer.mlp_norm, layer.mlp_norm_bias};
  if (gemm_->takes_fused(fused)) return normed ? run_normed(norm, fused, rows, stream) : gemm_->run(fused, stream);
  call.rows = product_rows(rows);
  call.y = w_.gate_up;
  call.y_dtype = dtype_;
  call.y_stride = 2 * ffn;
  WW_RETURN_IF_ERROR(normed ? run_normed(norm, call, rows, stream) : gemm_->run(call, stream));
  gpu::glu({.activation = call.linear->glu, .in = w_.gate_up, .dtype = dtype_, .rows = rows, .cols = ffn, .out = w_.act,
            .prefetch = normed ? ahead(layer.down, rows) : gpu::WeightPrefetch{}},
           stream);
  return {};
}

Status GpuDecoder::mlp(const GpuDecoderLayer& layer, int64_t rows, void* stream) {
  WW_RETURN_IF_ERROR(glu_product(layer, {.linear = &layer.gate_up}, rows, stream));
  return add_branch(layer.down, w_.act, layer.mlp_out_norm, rows, stream);
}

Status GpuDecoder::experts(int index, const ForwardBatch& batch, int64_t rows) {
  const GpuDecoderLayer& layer = weights_.layers[index];
  void* const stream = batch.device.stream;
  GpuExperts::Step step;
  step.layer = &layer;
  step.experts = &weights_.expert_layers[index];
  step.layer_index = index;
  step.rows = rows;
  step.product_rows = product_rows(rows);
  step.x = w_.x[current_];
  step.h = w_.h;
  step.h_f32 = w_.h_f32;
  step.positions = batch.device.positions;
  step.stream = stream;
  if (pending_.data != nullptr || spec_.layer_norm || !experts_->norms_itself(step)) {
    step.normed = true;
    normed({layer.mlp_norm, layer.mlp_norm_bias}, experts_->ahead(*step.experts, rows), rows, stream,
           experts_->wants_f32_rows(layer));
  }
  WW_RETURN_IF_ERROR(experts_->run(step, *gemm_));
  if (layer.shared_down.empty()) return {};
  WW_RETURN_IF_ERROR(glu_product(layer, {.linear = &layer.shared_gate_up, .x = w_.h}, rows, stream));
  if (!layer.shared_gate.empty()) {
    gpu::scale_by_gate({.x = w_.h, .dtype = dtype_, .rows = rows, .hidden = spec_.hidden_size, .gate = layer.shared_gate.data,
                        .y = w_.act, .cols = layer.shared_down.in_features},
                       stream);
  }
  return add_branch(layer.shared_down, w_.act, {}, rows, stream);
}

// After the last attention only the rows with wanted logits go on.
void GpuDecoder::keep_logits_rows(const ForwardBatch& batch) {
  const int64_t rows = static_cast<int64_t>(batch.logits_rows.size());
  if (rows == batch.num_tokens) return;
  const int64_t hidden_bytes = int64_t{spec_.hidden_size} * sizeof(float);
  const int64_t q_bytes = int64_t{spec_.num_q_heads} * spec_.head_dim * dtype_info(dtype_).block_bytes;
  void* const stream = batch.device.stream;
  gpu::gather_rows(w_.x[0], batch.device.logits_rows, rows, hidden_bytes, w_.x[1], stream);
  gpu::gather_rows(w_.attention_out[0], batch.device.logits_rows, rows, q_bytes, w_.attention_out[1], stream);
  current_ = 1;
}

Status GpuDecoder::forward(const ForwardBatch& batch, GpuKvCache& cache, AttentionBackend& attention,
                           const GpuFutureTokens& futures, float* logits) {
  int64_t rows = batch.num_tokens;
  if (rows == 0) return {};
  void* const stream = batch.device.stream;
  current_ = 0;
  pending_ = {};
  decoding_ = batch.mode == ForwardMode::decode;
  gpu::embedding({.table = weights_.embedding, .dtype = dtype_, .ids = batch.device.input_ids,
                  .future_slots = futures.slots, .sampled = futures.sampled, .rows = rows, .cols = spec_.hidden_size,
                  .scale = spec_.embedding_scale, .out = w_.x[0]},
                 stream);
  const int num_layers = static_cast<int>(weights_.layers.size());
  for (int i = 0; i < num_layers; ++i) {
    const GpuDecoderLayer& layer = weights_.layers[i];
    const gpu::GpuLinear& qkv = layer.qkv.front();
    gpu::GemmCall product = {.linear = &qkv, .rows = product_rows(rows), .y = w_.qkv, .y_dtype = dtype_,
                             .y_stride = qkv.out_features};
    gpu::QkvRowsCall qkv_call = qkv_rows(i, batch, cache);
    if (!spec_.wide_qk_norm && gpu::rope_takes_partials(qkv_call)) qkv_call.partials = leave_partials(product);
    WW_RETURN_IF_ERROR(run_normed({layer.input_norm, layer.input_norm_bias}, product, rows, stream));
    if (spec_.wide_qk_norm) norm_all_heads(layer, rows, stream);
    gpu::norm_rope_write_kv(qkv_call, stream);
    if (i == num_layers - 1 && batch.logits_rows.empty()) break;
    attend(i, batch, cache, attention);
    if (i == num_layers - 1) {
      keep_logits_rows(batch);
      rows = static_cast<int64_t>(batch.logits_rows.size());
    }
    WW_RETURN_IF_ERROR(add_branch(layer.o, w_.attention_out[current_], layer.attention_out_norm, rows, stream));
    WW_RETURN_IF_ERROR(layer.experts.empty() ? mlp(layer, rows, stream) : experts(i, batch, rows));
  }
  if (!batch.logits_rows.empty()) {
    WW_RETURN_IF_ERROR(run_normed({weights_.final_norm, weights_.final_norm_bias}, {.linear = &weights_.lm_head, .rows = rows, .y = logits,
                                                        .y_dtype = DType::f32, .y_stride = spec_.vocab_size},
                                  rows, stream));
    if (spec_.final_softcap > 0) gpu::softcap(logits, spec_.final_softcap, rows * spec_.vocab_size, stream);
  }
  return cuda_status(cudaPeekAtLastError(), "a forward step");
}

}  // namespace warpweave
