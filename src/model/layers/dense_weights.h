// The weights of a gated feed-forward (GLU, Shazeer 2020).
#pragma once

#include "model/layers/branch_norms.h"

namespace warpweave {

template <typename Device>
struct DenseWeightsOf {
  BranchNormsOf<Device> norms;
  typename Device::Linear gate_up;  // GLU
  typename Device::Linear down;

  template <typename Visit>
  void each_linear(Visit&& visit) const {
    visit(gate_up);
    visit(down);
  }
};

}  // namespace warpweave
