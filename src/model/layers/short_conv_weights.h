// The weights of a gated short convolution (src/linear/short_conv.h).
#pragma once

#include "model/layers/branch_norms.h"

namespace warpweave {

template <typename Device>
struct ShortConvWeightsOf {
  BranchNormsOf<Device> norms;
  int width = 0;                        // of the convolution, in tokens
  typename Device::Linear in;           // hidden -> [B | C | x], hidden each
  typename Device::Linear out;          // hidden -> hidden
  typename Device::Vector conv_weight;  // [hidden, width]
  typename Device::Vector conv_bias;    // [hidden], or empty

  template <typename Visit>
  void each_linear(Visit&& visit) const {
    visit(in);
    visit(out);
  }
};

}  // namespace warpweave
