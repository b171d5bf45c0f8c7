#include "model/layers/dense_feed_forward.h"

#include "model/layers/residual.h"

namespace warpweave {

Status DenseFeedForward::forward(const LayerCall& call) {
  ResidualStream& x = call.x;
  const int64_t cols = weights_.down.in_features();
  const auto size = static_cast<size_t>(x.rows() * cols);
  if (act_.size() < size) act_.resize(size);
  const LinearInput input = x.normed(weights_.norms.in, weights_.gate_up);
  const DType dtype = weights_.down.preferred_input();
  weights_.gate_up.forward(input, {.data = act_.data(), .dtype = dtype, .row_stride = cols}, x.team());
  x.add(weights_.down, {.data = act_.data(), .dtype = dtype, .rows = x.rows(), .row_stride = cols}, weights_.norms.out);
  return {};
}

}  // namespace warpweave
