// Finds and packs the weights of a dense feed-forward.
#pragma once

#include "model/layers/dense_weights.h"
#include "model/tensor_packer.h"

namespace warpweave {

template <typename Target>
auto build_dense(TensorPacker<Target>& pack, const BranchNames& names)
    -> Result<DenseWeightsOf<typename Target::Device>> {
  const int64_t hidden = pack.config.hidden_size, ffn = pack.config.intermediate_size;
  DenseWeightsOf<typename Target::Device> out;
  WW_ASSIGN_OR_RETURN(out.norms, pack.norms(names));
  const MlpNames& mlp = pack.traits.mlp_names;
  const auto part = [&](std::string name, int64_t rows, int64_t first_row = 0, int64_t of_rows = -1) {
    name.insert(0, names.prefix);
    return PartName{name + ".weight", rows, pack.traits.mlp_bias ? name + ".bias" : "", first_row, of_rows};
  };
  const std::string gate = mlp.gate, up = mlp.up;
  std::vector<PartName> parts = {part(gate, ffn), part(up, ffn)};
  if (gate == up) parts = {part(up, ffn, 0, 2 * ffn), part(up, ffn, ffn, 2 * ffn)};
  if (gate.empty()) parts = {part(up, ffn)};
  out.gated = !gate.empty();
  WW_ASSIGN_OR_RETURN(out.gate_up,
                      pack.linear(parts, hidden, out.gated ? pack.traits.activation : GluActivation::none));
  WW_ASSIGN_OR_RETURN(out.down, pack.linear({part(mlp.down, hidden)}, ffn));
  return out;
}

}  // namespace warpweave
