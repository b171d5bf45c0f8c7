#include "model/layers/gpu_gdn_mixer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "linear/cuda/cuda_device.h"
#include "model/layers/gpu_residual.h"

namespace warpweave {

Status GpuGdnWorkspace::reserve(const GpuGdnWeights& weights, const GpuGdnLimits& limits, GpuWorkspace& workspace) {
  const auto& layer = weights.layer;
  WW_ASSIGN_OR_RETURN(kernels_, LinearAttnDispatcher::create(layer.shape.kind, limits.kernels, limits.state_dtype,
                                                             linear::cuda_linear_attn_backends()));
  const size_t element = dtype_info(limits.dtype).block_bytes;
  dtype_ = limits.dtype;
  verify_rows_ = limits.verify_rows;
  layer_bytes_ = verify_rows_ * layer.row_width() * static_cast<int64_t>(element);
  workspace.get(rows_, std::max(limits.tokens, verify_rows_ * limits.layers) * layer.row_width(), element);
  workspace.get(heads_[0], limits.tokens * layer.v_width(), element);
  workspace.get(heads_[1], limits.kept_rows * layer.v_width(), element);
  memory_bytes_ = kernels_.workspace_bytes(layer.shape, {.max_requests = limits.max_requests, .max_tokens = limits.tokens,
                                                         .conv_width = layer.conv_width});
  workspace.get(memory_, static_cast<int64_t>(memory_bytes_), 1);
  return workspace.status();
}

namespace {

// Requests of one row that stand together at the beginning or at the end of the batch, more of them: [first, end).
std::pair<int, int> single_rows(const ForwardBatch& batch) {
  int front = 0, back = batch.num_reqs;
  while (front < batch.num_reqs && batch.q_len(front) == 1) ++front;
  while (back > front && batch.q_len(back - 1) == 1) --back;
  return front >= batch.num_reqs - back ? std::pair(0, front) : std::pair(back, batch.num_reqs);
}

}  // namespace

void GpuGdnWorkspace::add_part(const ForwardBatch& batch, int first, int end, LinearAttnPhase phase) {
  if (first == end) return;
  Part& part = parts_[num_parts_++];
  part = {};
  part.phase = phase;
  part.batch.num_requests = end - first;
  part.batch.num_tokens = batch.num_tokens;  // rows are counted from the batch's beginning
  part.batch.max_q_tokens = phase == LinearAttnPhase::decode ? 1 : batch.max_q_len;
  part.batch.q_indptr = batch.mode == ForwardMode::decode ? nullptr : batch.device.q_indptr + first;
  part.batch.slots = batch.device.state_slots + first;
  part.batch.initial_slots = batch.device.initial_state_slots + first;
}

// A step that computes prompts beside others' tokens runs each in kernels of its own.
Status GpuGdnWorkspace::start(const ForwardBatch& batch, const int32_t* tree_parents) {
  num_parts_ = 0;
  keeps_rows_ = batch.mode == ForwardMode::target_verify;
  if (keeps_rows_) {
    if (batch.num_tokens > verify_rows_) return Status::internal("a step verifies more proposals than recurrent layers have memory for");
    add_part(batch, 0, batch.num_reqs, LinearAttnPhase::target_verify);
    parts_[0].batch.parents = tree_parents;
    return {};
  }
  const bool decodes = batch.mode == ForwardMode::decode;
  const auto [first, end] = decodes ? std::pair(0, batch.num_reqs) : single_rows(batch);
  add_part(batch, first, end, LinearAttnPhase::decode);
  add_part(batch, first == 0 ? end : 0, first == 0 ? batch.num_reqs : first, LinearAttnPhase::extend);
  return {};
}

Status GpuGdnWorkspace::start_commit(const ForwardBatch& batch, const int32_t* tree_parents, const int32_t* accepted) {
  WW_RETURN_IF_ERROR(start(batch, tree_parents));
  parts_[0].phase = LinearAttnPhase::commit;
  parts_[0].batch.accepted = accepted;
  return {};
}

void* GpuGdnWorkspace::rows_of(int state_layer) const {
  return keeps_rows_ ? static_cast<std::byte*>(rows_) + state_layer * layer_bytes_ : rows_;
}

void GpuGdnWorkspace::run(const Part& part, const LinearAttnCall& call) {
  switch (part.phase) {
    case LinearAttnPhase::decode: return kernels_.decode(call);
    case LinearAttnPhase::extend: return kernels_.extend(call);
    case LinearAttnPhase::target_verify: return kernels_.target_verify(call);
    case LinearAttnPhase::commit: return kernels_.commit(call);
  }
}

// heads = what the heads found, normed and gated; of a commit nothing but the states.
Status GpuGdnMixer::attend(const GpuStateCache& states, void* stream) {
  const auto& layer = weights_.layer;
  const LinearAttnShape& shape = layer.shape;
  const DType dtype = w_.dtype_;
  const StateLayerView state = states.recurrent(state_layer_), window = states.conv(state_layer_);
  const int64_t width = layer.row_width(), channels = shape.conv_channels(), v_width = layer.v_width();
  const auto part = [&](int64_t at, int64_t head_stride) {
    const auto* const rows = static_cast<const std::byte*>(w_.rows_of(state_layer_)) + at * static_cast<int64_t>(dtype_info(dtype).block_bytes);
    return LinearAttnRows{rows, dtype, width, head_stride};
  };
  const LinearAttnConv conv{.x = part(0, channels), .weight = layer.conv_weight.data, .width = layer.conv_width,
                            .state = window.data, .state_dtype = window.dtype, .slot_stride = window.slot_stride};
  const LinearAttnGates gates{.a = part(channels + v_width + shape.v_heads, 1), .b = part(channels + v_width, 1),
                              .a_log = layer.a_log.data, .dt_bias = layer.dt_bias.data};
  const LinearAttnNorm norm{.z = part(channels, shape.v_dim), .weight = layer.norm_weight.data, .eps = layer.norm_eps};
  LinearAttnCall attention;
  attention.shape = shape;
  attention.conv = &conv;
  attention.gates = &gates;
  attention.norm = &norm;
  attention.l2norm = true;
  attention.scale = 1 / std::sqrt(static_cast<float>(shape.k_dim));
  attention.exact = dtype == DType::f32;
  attention.state = {state.data, state.dtype, state.slot_stride, int64_t{shape.v_dim} * shape.k_dim};
  attention.out = w_.heads_[0];
  attention.out_dtype = dtype;
  attention.out_token_stride = v_width;
  attention.workspace = w_.memory_;
  attention.workspace_bytes = w_.memory_bytes_;
  attention.stream = stream;
  for (int i = 0; i < w_.num_parts_; ++i) {
    attention.batch = &w_.parts_[i].batch;
    WW_RETURN_IF_ERROR(check_linear_attn_call(attention));
    w_.run(w_.parts_[i], attention);
  }
  return {};
}

Status GpuGdnMixer::commit(const GpuStateCache& states, void* stream) { return attend(states, stream); }

Status GpuGdnMixer::forward(const GpuLayerCall& call) {
  const auto& layer = weights_.layer;
  GpuResidual& x = call.x;
  WW_RETURN_IF_ERROR(x.run_normed(weights_.norms.in, {.linear = &layer.in, .rows = x.product_rows(), .y = w_.rows_of(state_layer_),
                                                      .y_dtype = x.dtype(), .y_stride = layer.row_width()}));
  WW_RETURN_IF_ERROR(attend(*call.recurrent, x.stream()));
  if (call.last_mixer && call.batch.logits_rows.empty()) return {};
  const void* heads = w_.heads_[0];
  if (call.last_mixer && x.keep(call.batch)) {
    const int64_t row_bytes = layer.v_width() * static_cast<int64_t>(dtype_info(x.dtype()).block_bytes);
    gpu::gather_rows(w_.heads_[0], call.batch.device.logits_rows, x.rows(), row_bytes, w_.heads_[1], x.stream());
    heads = w_.heads_[1];
  }
  return x.add(layer.out, heads, weights_.norms.out);
}

}  // namespace warpweave
