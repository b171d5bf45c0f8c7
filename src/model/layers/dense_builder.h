// Finds and packs the weights of a gated feed-forward.
#pragma once

#include "model/layers/dense_weights.h"
#include "model/tensor_packer.h"

namespace warpweave {

template <typename Target>
auto build_dense(TensorPacker<Target>& pack, const BranchNames& names) -> Result<DenseWeightsOf<typename Target::Device>> {
  const int64_t hidden = pack.config.hidden_size, ffn = pack.config.intermediate_size;
  DenseWeightsOf<typename Target::Device> out;
  WW_ASSIGN_OR_RETURN(out.norms, pack.norms(names));
  const auto part = [&](const char* name, int64_t rows) {
    return PartName{names.prefix + name + ".weight", rows, pack.traits.mlp_bias ? names.prefix + name + ".bias" : ""};
  };
  WW_ASSIGN_OR_RETURN(out.gate_up, pack.linear({part("gate_proj", ffn), part("up_proj", ffn)}, hidden,
                                               pack.traits.activation));
  WW_ASSIGN_OR_RETURN(out.down, pack.linear({part("down_proj", hidden)}, ffn));
  return out;
}

}  // namespace warpweave
