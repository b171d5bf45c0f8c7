#include "model/layers/short_conv_mixer.h"

#include "model/layers/residual.h"

namespace warpweave {

// outputs = what becomes of the layer's rows; of a commit nothing but the states.
Status ShortConvMixer::convolve(HostRecurrent& recurrent, ThreadTeam& team) {
  const StateLayerView state = recurrent.states.conv(state_layer_);
  const int64_t channels = weights_.out.in_features();
  ShortConvCall conv{.phase = w_.rows_.phase(),
                     .batch = &w_.rows_.batch(),
                     .channels = static_cast<int>(channels),
                     .conv = {},
                     .out = w_.outputs_.data()};
  conv.conv = {.x = {w_.rows_.of_layer(state_layer_), DType::f32, 3 * channels, 0},
               .weight = weights_.conv_weight.data(),
               .bias = data_or_null(weights_.conv_bias),
               .width = weights_.width,
               .silu = false,
               .state = state.data,
               .state_dtype = state.dtype,
               .slot_stride = state.slot_stride};
  WW_RETURN_IF_ERROR(check_short_conv_call(conv));
  run_short_conv(conv, team);
  return {};
}

Status ShortConvMixer::commit(HostRecurrent& recurrent, ThreadTeam& team) { return convolve(recurrent, team); }

Status ShortConvMixer::forward(const LayerCall& call) {
  const int64_t channels = weights_.out.in_features(), tokens = call.x.rows();
  if (w_.outputs_.size() < static_cast<size_t>(tokens * channels)) w_.outputs_.resize(tokens * channels);
  weights_.in.forward(call.x.normed(weights_.norms.in, weights_.in),
                      {.data = w_.rows_.of_layer(state_layer_), .row_stride = 3 * channels}, call.x.team());
  WW_RETURN_IF_ERROR(convolve(*call.recurrent, call.x.team()));
  if (call.last_mixer) {
    const std::span<const int32_t> wanted = call.batch.logits_rows;
    if (wanted.empty()) return {};
    keep_rows(w_.outputs_.data(), channels, wanted);
    call.x.keep(wanted);
  }
  call.x.add(weights_.out,
             {.data = w_.outputs_.data(), .dtype = DType::f32, .rows = call.x.rows(), .row_stride = channels},
             weights_.norms.out);
  return {};
}

}  // namespace warpweave
