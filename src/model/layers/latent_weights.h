// The weights of latent attention (MLA), its up-projections cut by heads: queries are carried into the latent space,
// where all heads read the cached row itself, and the result is carried back.
#pragma once

#include <vector>

#include "model/layers/branch_norms.h"

namespace warpweave {

template <typename Device>
struct LatentWeightsOf {
  using Linear = typename Device::Linear;
  using Vector = typename Device::Vector;

  BranchNormsOf<Device> norms;
  std::vector<Linear> in;           // hidden -> [queries, or their compressed form | latent | rope]; more than one GEMM
                                    // where formats differ
  Vector q_norm;                    // [q_rank]; empty: queries are not compressed
  Linear q_up;                      // q_rank -> heads * (nope + rope); empty likewise
  Vector latent_norm;               // [kv_rank]
  typename Device::LatentHeads heads;  // nope -> kv_rank and kv_rank -> v_dim of each head
  Linear o;                         // heads * v_dim -> hidden

  template <typename Visit>
  void each_linear(Visit&& visit) const {
    for (const Linear& part : in) visit(part);
    if (!q_norm.empty()) visit(q_up);
    heads.each_linear(visit);
    visit(o);
  }
};

}  // namespace warpweave
