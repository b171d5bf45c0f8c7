// The weights of a mixture of experts (ops/router_rule.h says how a row chooses).
#pragma once

#include "model/layers/branch_norms.h"

namespace warpweave {

template <typename Device>
struct ExpertsWeightsOf {
  using Linear = typename Device::Linear;
  using Vector = typename Device::Vector;

  BranchNormsOf<Device> norms;
  Linear router;
  Vector router_correction;         // [experts] RouterRule's correction bias, or empty
  typename Device::Experts
      experts;  // the shared ones after the routed ones where Target::kSharedAmongExperts and they fit
  Linear shared_gate_up;            // else GLU of the experts that every row passes; or empty
  Linear shared_down;
  Vector shared_gate;               // [hidden]: the shared experts' result times sigmoid(x . shared_gate); or empty

  // All but the experts' own.
  template <typename Visit>
  void each_linear(Visit&& visit) const {
    visit(router);
    if (shared_down.empty()) return;
    visit(shared_gate_up);
    visit(shared_down);
  }
};

}  // namespace warpweave
