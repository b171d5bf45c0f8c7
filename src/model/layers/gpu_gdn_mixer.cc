#include "model/layers/gpu_gdn_mixer.h"

#include <algorithm>
#include <cmath>

#include "linear/cuda/cuda_device.h"
#include "model/layers/gpu_residual.h"
#include "ops/cuda/norms.h"

namespace warpweave {

Status GpuGdnWorkspace::reserve(const GpuGdnWeights& weights, const GpuRecurrentLimits& limits,
                                GpuWorkspace& workspace) {
  const auto& layer = weights.layer;
  WW_ASSIGN_OR_RETURN(kernels_, LinearAttnDispatcher::create(layer.shape.kind, limits.kernels, limits.state_dtype,
                                                             linear::cuda_linear_attn_backends()));
  batch_invariant_ = limits.batch_invariant;
  const size_t element = dtype_info(limits.dtype).block_bytes;
  const int64_t rank = layer.widest_rank([](const gpu::GpuLinear& linear) { return linear.out_features; });
  if (rank > 0) workspace.get(low_, limits.tokens * rank, element);
  workspace.get(heads_[0], limits.tokens * layer.v_width(), element);
  workspace.get(heads_[1], limits.kept_rows * layer.v_width(), element);
  memory_bytes_ = kernels_.workspace_bytes(
      layer.shape, {.max_requests = limits.max_requests, .max_tokens = limits.tokens, .conv_width = layer.conv_width});
  workspace.get(memory_, static_cast<int64_t>(memory_bytes_), 1);
  return workspace.status();
}

void GpuGdnWorkspace::run(LinearAttnPhase phase, const LinearAttnCall& call) {
  switch (phase) {
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
  const DType dtype = w_.rows_.dtype();
  const StateLayerView state = states.recurrent(state_layer_), window = states.conv(state_layer_);
  const int64_t width = layer.row_width(), v_width = layer.v_width();
  const auto columns = [&](int64_t at, int64_t head_stride) {
    const auto* const rows = static_cast<const std::byte*>(w_.rows_.of_layer(state_layer_)) +
                             at * static_cast<int64_t>(dtype_info(dtype).block_bytes);
    return LinearAttnRows{rows, dtype, width, head_stride};
  };
  const LinearAttnConv conv{.x = columns(0, shape.conv_channels()), .weight = layer.conv_weight.data,
                            .v_weight = layer.token_weights ? columns(layer.weight_column(), 0) : LinearAttnRows{},
                            .width = layer.conv_width,
                            .state = window.data, .state_dtype = window.dtype, .slot_stride = window.slot_stride};
  const LinearAttnGates gates{.a = columns(layer.a_column(), shape.decay_dim()), .b = columns(layer.b_column(), 1),
                              .a_log = layer.a_log.data, .dt_bias = layer.dt_bias.data};
  const LinearAttnNorm norm{.z = columns(layer.z_column(), shape.v_dim),
                            .weight = layer.norm_weight.data,
                            .eps = layer.norm_eps,
                            .gate = layer.norm_gate()};
  LinearAttnCall attention;
  attention.shape = shape;
  attention.conv = &conv;
  attention.gates = &gates;
  attention.norm = &norm;
  attention.l2norm = true;
  attention.scale = 1 / std::sqrt(static_cast<float>(shape.k_dim));
  attention.exact = dtype == DType::f32;
  attention.any_form = !w_.batch_invariant_;
  attention.same_bits_drafted = w_.batch_invariant_;
  attention.state = {state.data, state.dtype, state.slot_stride, int64_t{shape.v_dim} * shape.k_dim};
  attention.out = w_.heads_[0];
  attention.out_dtype = dtype;
  attention.out_token_stride = v_width;
  attention.workspace = w_.memory_;
  attention.workspace_bytes = w_.memory_bytes_;
  attention.stream = stream;
  for (const GpuRecurrentRows::Part& part : w_.rows_.parts()) {
    attention.batch = &part.batch;
    WW_RETURN_IF_ERROR(check_linear_attn_call(attention));
    w_.run(part.phase, attention);
  }
  return {};
}

// The layer's rows of the normed ones.
Status GpuGdnMixer::make_rows(const GpuLayerCall& call) {
  const auto& layer = weights_.layer;
  GpuResidual& x = call.x;
  void* const rows = w_.rows_.of_layer(state_layer_);
  const int64_t width = layer.row_width();
  gpu::GemmCall in = {
      .linear = &layer.in, .rows = x.gemm_rows(), .y = rows, .y_dtype = x.dtype(), .y_stride = width};
  if (!layer.is_kda() && !layer.token_weights) return x.run_normed(weights_.norms.in, in);
  x.normed(weights_.norms.in, x.ahead(layer.in));
  in.x = x.h();
  WW_RETURN_IF_ERROR(x.gemm().run(in, x.stream()));
  const auto through_rank = [&](const gpu::GpuLinear& down, const gpu::GpuLinear& up, int64_t column,
                                bool silu = false) -> Status {
    WW_RETURN_IF_ERROR(x.gemm().run({.linear = &down,
                                     .x = x.h(),
                                     .rows = x.gemm_rows(),
                                     .y = w_.low_,
                                     .y_dtype = x.dtype(),
                                     .y_stride = down.out_features},
                                    x.stream()));
    if (silu) {
      gpu::activate(
          {.activation = GluActivation::silu, .x = w_.low_, .dtype = x.dtype(), .count = x.rows() * down.out_features},
          x.stream());
    }
    auto* const to = static_cast<std::byte*>(rows) + column * static_cast<int64_t>(dtype_info(x.dtype()).block_bytes);
    return x.gemm().run(
        {.linear = &up, .x = w_.low_, .rows = x.gemm_rows(), .y = to, .y_dtype = x.dtype(), .y_stride = width},
        x.stream());
  };
  if (layer.token_weights) return through_rank(layer.weight_down, layer.weight_up, layer.weight_column(), true);
  WW_RETURN_IF_ERROR(through_rank(layer.a_down, layer.a_up, layer.a_column()));
  return through_rank(layer.z_down, layer.z_up, layer.z_column());
}

Status GpuGdnMixer::forward(const GpuLayerCall& call) {
  const auto& layer = weights_.layer;
  GpuResidual& x = call.x;
  WW_RETURN_IF_ERROR(make_rows(call));
  WW_RETURN_IF_ERROR(attend(*call.recurrent, x.stream()));
  if (call.last_mixer && call.batch.logits_rows.empty()) return {};
  const void* heads = w_.heads_[0];
  if (call.last_mixer && x.keep(call.batch)) {
    const int64_t row_bytes = layer.v_width() * static_cast<int64_t>(dtype_info(x.dtype()).block_bytes);
    gpu::gather_rows({w_.heads_[0], call.batch.device.logits_rows, x.rows(), row_bytes, w_.heads_[1]}, x.stream());
    heads = w_.heads_[1];
  }
  return x.add(layer.out, heads, weights_.norms.out);
}

}  // namespace warpweave
