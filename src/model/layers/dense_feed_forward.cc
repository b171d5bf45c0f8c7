#include "model/layers/dense_feed_forward.h"

#include "model/layers/residual.h"
#include "ops/elementwise.h"

namespace warpweave {

Status DenseFeedForward::forward(const LayerCall& call) {
  ResidualStream& x = call.x;
  const int64_t cols = weights_.down.in_features();
  const auto size = static_cast<size_t>(x.rows() * cols);
  if (act_.size() < size) act_.resize(size);
  const LinearInput input = x.normed(weights_.norms.in, weights_.gate_up);
  const DType dtype = weights_.down.preferred_input();
  const LinearAddend adapted = x.adapted({call.layer, LoraSite::gate_up}, input, weights_.gated ? 2 * cols : cols);
  LinearInput act = {.data = act_.data(), .dtype = dtype, .rows = x.rows(), .row_stride = cols};
  if (weights_.gated) {
    weights_.gate_up.forward(input, {.data = act_.data(), .dtype = dtype, .row_stride = cols, .addend = adapted},
                             x.team());
  } else {
    weights_.gate_up.forward(input, {.data = act_.data(), .row_stride = cols, .addend = adapted}, x.team());
    activate_rows(activation_, {act_.data(), x.rows(), cols, dtype}, x.team());
    if (dtype == DType::bf16) act.row_stride = 2 * cols;
  }
  x.add(weights_.down, act, weights_.norms.out, x.adapted({call.layer, LoraSite::down}, act, x.hidden_size()));
  x.renorm(weights_.norms.after);
  return {};
}

}  // namespace warpweave
