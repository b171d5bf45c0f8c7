#include "model/layers/gpu_experts_feed_forward.h"

#include "model/layers/gpu_residual.h"

namespace warpweave {

Status GpuExpertsFeedForward::forward(const GpuLayerCall& call) {
  GpuResidual& x = call.x;
  GpuExperts::Step step;
  step.weights = &weights_;
  step.layer_index = call.layer;
  step.rows = x.rows();
  step.gemm_rows = x.gemm_rows();
  step.x = x.data();
  step.h = x.h();
  step.h_f32 = x.h_f32();
  step.positions = call.batch.device.positions;
  step.kv_slots = call.batch.device.kv_slots;
  step.stream = x.stream();
  if (x.has_partials() || x.norm_spec().layer_norm || !experts_.norms_itself(step)) {
    step.normed = true;
    x.normed(weights_.norms.in, experts_.ahead(weights_.experts, x.rows()), experts_.wants_f32_rows(weights_));
  }
  WW_RETURN_IF_ERROR(experts_.run(step, x.gemm()));
  x.add_experts(experts_.sums(step));
  return weights_.shared_down.empty() ? Status() : shared_experts(x);
}

Status GpuExpertsFeedForward::shared_experts(GpuResidual& x) {
  WW_RETURN_IF_ERROR(run_glu({.gate_up = weights_.shared_gate_up, .input = x.h()}, shared_, x));
  if (!weights_.shared_gate.empty()) {
    gpu::scale_by_gate({.x = x.h(), .dtype = x.dtype(), .rows = x.rows(), .hidden = x.hidden_size(),
                        .gate = weights_.shared_gate.data, .y = shared_.act, .cols = weights_.shared_down.in_features},
                       x.stream());
  }
  return x.add(weights_.shared_down, shared_.act, {});
}

}  // namespace warpweave
