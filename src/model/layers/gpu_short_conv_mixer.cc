#include "model/layers/gpu_short_conv_mixer.h"

#include "linear/cuda/short_conv_device.h"
#include "model/layers/gpu_residual.h"

namespace warpweave {

void GpuShortConvWorkspace::reserve(const GpuShortConvWeights& layer, const GpuRecurrentLimits& limits,
                                    GpuWorkspace& workspace) {
  const size_t element = dtype_info(limits.dtype).block_bytes;
  workspace.get(outputs_[0], limits.tokens * layer.out.in_features, element);
  workspace.get(outputs_[1], limits.kept_rows * layer.out.in_features, element);
}

// outputs = what becomes of the layer's rows; of a commit nothing but the states.
Status GpuShortConvMixer::convolve(const GpuStateCache& states, void* stream) {
  const StateLayerView state = states.conv(state_layer_);
  const int64_t channels = weights_.out.in_features;
  const DType dtype = w_.rows_.dtype();
  for (const GpuRecurrentRows::Part& part : w_.rows_.parts()) {
    ShortConvCall conv{.phase = part.phase, .batch = &part.batch, .channels = static_cast<int>(channels), .conv = {},
                       .out = w_.outputs_[0], .out_dtype = dtype, .stream = stream};
    conv.conv = {.x = {w_.rows_.of_layer(state_layer_), dtype, 3 * channels, 0}, .weight = weights_.conv_weight.data,
                 .bias = weights_.conv_bias.data, .width = weights_.width, .silu = false, .state = state.data,
                 .state_dtype = state.dtype, .slot_stride = state.slot_stride};
    WW_RETURN_IF_ERROR(check_short_conv_call(conv));
    linear::launch_short_conv(conv);
  }
  return {};
}

Status GpuShortConvMixer::forward(const GpuLayerCall& call) {
  GpuResidual& x = call.x;
  const int64_t channels = weights_.out.in_features;
  WW_RETURN_IF_ERROR(x.run_normed(weights_.norms.in, {.linear = &weights_.in, .rows = x.gemm_rows(),
                                                      .y = w_.rows_.of_layer(state_layer_), .y_dtype = x.dtype(),
                                                      .y_stride = 3 * channels}));
  WW_RETURN_IF_ERROR(convolve(*call.recurrent, x.stream()));
  if (call.last_mixer && call.batch.logits_rows.empty()) return {};
  const void* outputs = w_.outputs_[0];
  if (call.last_mixer && x.keep(call.batch)) {
    const int64_t row_bytes = channels * static_cast<int64_t>(dtype_info(x.dtype()).block_bytes);
    gpu::gather_rows({w_.outputs_[0], call.batch.device.logits_rows, x.rows(), row_bytes, w_.outputs_[1]}, x.stream());
    outputs = w_.outputs_[1];
  }
  return x.add(weights_.out, outputs, weights_.norms.out);
}

}  // namespace warpweave
