#include "model/layers/experts_feed_forward.h"

#include "model/layers/residual.h"
#include "ops/moe.h"

namespace warpweave {

Status ExpertsFeedForward::forward(const LayerCall& call) {
  ResidualStream& x = call.x;
  // The router multiplies in f32, so its input is the f32 norm that the experts share.
  const LinearInput input = x.normed(weights_.norms.in, weights_.router);
  const bool shared = !weights_.shared_down.empty();
  moe_forward({.x = static_cast<const float*>(input.data), .rows = x.rows(), .x_stride = x.hidden_size(),
               .router = &weights_.router, .experts = weights_.experts, .rule = rule_,
               .correction = data_or_null(weights_.router_correction),
               .shared_gate_up = shared ? &weights_.shared_gate_up : nullptr,
               .shared_down = shared ? &weights_.shared_down : nullptr,
               .shared_gate = data_or_null(weights_.shared_gate), .rows_by_expert = rows_by_expert_.data(),
               .y = x.data(), .y_stride = x.hidden_size()},
              x.team());
  if (x.rows() > 0) load_.add(call.layer, rows_by_expert_);
  return {};
}

}  // namespace warpweave
