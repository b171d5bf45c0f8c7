// The weights of a gated delta net (src/linear/gdn_layer.h).
#pragma once

#include "linear/gdn_layer.h"
#include "model/layers/branch_norms.h"

namespace warpweave {

template <typename Device>
struct GdnWeightsOf {
  BranchNormsOf<Device> norms;
  GdnLayerWeightsOf<typename Device::Linear, typename Device::Vector> layer;

  template <typename Visit>
  void each_linear(Visit&& visit) const {
    visit(layer.in);
    if (layer.is_kda()) {
      for (const auto* linear : {&layer.a_down, &layer.a_up, &layer.z_down, &layer.z_up}) visit(*linear);
    }
    if (layer.token_weights) {
      visit(layer.weight_down);
      visit(layer.weight_up);
    }
    visit(layer.out);
  }
};

}  // namespace warpweave
