// The weights of attention over pages of K and V.
#pragma once

#include <vector>

#include "model/layers/branch_norms.h"

namespace warpweave {

template <typename Device>
struct AttentionWeightsOf {
  using Linear = typename Device::Linear;
  using Vector = typename Device::Vector;

  BranchNormsOf<Device> norms;
  std::vector<Linear> qkv;  // q|k|v side by side, with an output gate q|k|v|gate: one GEMM, more where formats differ
  Vector q_norm;                    // [head_dim], or of all heads (AttentionSpec::wide_qk_norm); or empty
  Vector k_norm;
  Vector sinks;                     // [num_q_heads], or empty
  Linear o;

  template <typename Visit>
  void each_linear(Visit&& visit) const {
    for (const Linear& part : qkv) visit(part);
    visit(o);
  }
};

}  // namespace warpweave
