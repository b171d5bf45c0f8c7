// The weights of a dense feed-forward: gated (GLU, Shazeer 2020) in nearly all families.
#pragma once

#include "model/layers/branch_norms.h"

namespace warpweave {

template <typename Device>
struct DenseWeightsOf {
  BranchNormsOf<Device> norms;
  bool gated = true;
  typename Device::Linear gate_up;  // GLU; without a gate: up alone
  typename Device::Linear down;

  template <typename Visit>
  void each_linear(Visit&& visit) const {
    visit(gate_up);
    visit(down);
  }
};

}  // namespace warpweave
