// Finds and packs the weights of attention.
#pragma once

#include "model/layers/attention_weights.h"
#include "model/tensor_packer.h"

namespace warpweave {

template <typename Target>
auto build_attention(TensorPacker<Target>& pack, const BranchNames& names)
    -> Result<AttentionWeightsOf<typename Target::Device>> {
  const ModelConfig& config = pack.config;
  const FamilyTraits& traits = pack.traits;
  AttentionWeightsOf<typename Target::Device> out;
  WW_ASSIGN_OR_RETURN(out.norms, pack.norms(names));
  const int64_t q_rows = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_rows = int64_t{config.num_kv_heads} * config.head_dim;
  const auto part = [&](const char* name, int64_t rows, bool bias) {
    return PartName{names.prefix + name + ".weight", rows, bias ? names.prefix + name + ".bias" : ""};
  };
  const bool bias = traits.qkv_bias;
  WW_ASSIGN_OR_RETURN(out.qkv, pack.linears({part("q_proj", q_rows, bias), part("k_proj", kv_rows, bias),
                                             part("v_proj", kv_rows, bias)}, config.hidden_size));
  WW_ASSIGN_OR_RETURN(out.o, pack.linear({part("o_proj", config.hidden_size, traits.o_bias)}, q_rows));
  if (traits.qk_norm) {
    const bool wide = traits.wide_qk_norm;
    WW_ASSIGN_OR_RETURN(out.q_norm, pack.vector(names.prefix + "q_norm.weight", wide ? q_rows : config.head_dim));
    WW_ASSIGN_OR_RETURN(out.k_norm, pack.vector(names.prefix + "k_norm.weight", wide ? kv_rows : config.head_dim));
  }
  if (traits.sinks && pack.source->has(names.prefix + "sinks")) {
    WW_ASSIGN_OR_RETURN(out.sinks, pack.vector(names.prefix + "sinks", config.num_q_heads));
  }
  return out;
}

}  // namespace warpweave
