// Finds and packs the weights of a gated short convolution.
#pragma once

#include "model/layers/short_conv_weights.h"
#include "model/tensor_packer.h"

namespace warpweave {

template <typename Target>
auto build_short_conv(TensorPacker<Target>& pack, const BranchNames& names)
    -> Result<ShortConvWeightsOf<typename Target::Device>> {
  ShortConvWeightsOf<typename Target::Device> out;
  WW_ASSIGN_OR_RETURN(out.norms, pack.norms(names));
  const ShortConvConfig& conv = *pack.config.short_conv;
  out.width = conv.width;
  const int64_t hidden = pack.config.hidden_size;
  const auto part = [&](const char* name, int64_t rows) {
    return PartName{names.prefix + name + ".weight", rows, conv.bias ? names.prefix + name + ".bias" : ""};
  };
  WW_ASSIGN_OR_RETURN(out.in, pack.linear({part("in_proj", 3 * hidden)}, hidden));
  WW_ASSIGN_OR_RETURN(out.out, pack.linear({part("out_proj", hidden)}, hidden));
  const int64_t shape[] = {hidden, 1, conv.width};
  WW_ASSIGN_OR_RETURN(out.conv_weight, pack.flat_vector(names.prefix + "conv.weight", shape));
  if (conv.bias) {
    WW_ASSIGN_OR_RETURN(const TensorView bias, pack.bias(names.prefix + "conv.bias", hidden, false));
    if (bias.data != nullptr) {
      WW_ASSIGN_OR_RETURN(out.conv_bias, pack.target.vector(bias));
    }
  }
  return out;
}

}  // namespace warpweave
