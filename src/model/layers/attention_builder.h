// Finds and packs the weights of attention.
#pragma once

#include "model/layers/attention_weights.h"
#include "model/tensor_packer.h"

namespace warpweave {

// q_proj holds for each head its query, then its gate; the GEMM puts all gates at the end of a row.
template <typename Target>
auto build_gated_qkv(TensorPacker<Target>& pack, const BranchNames& names) -> Result<typename Target::Device::Linear> {
  const ModelConfig& config = pack.config;
  const int64_t head = config.head_dim, q_rows = 2 * config.num_q_heads * head, kv_rows = config.num_kv_heads * head;
  const auto find = [&](const char* name, int64_t rows) -> Result<LinearPart> {
    const int64_t shape[] = {rows, config.hidden_size};
    LinearPart part{.weight = {}, .bias = {}, .stays = true};
    WW_ASSIGN_OR_RETURN(part.weight, pack.source->find(names.prefix + name + ".weight", shape));
    if (pack.traits.qkv_bias) {
      WW_ASSIGN_OR_RETURN(part.bias, pack.bias(names.prefix + name + ".bias", rows, false));
    }
    return part;
  };
  WW_ASSIGN_OR_RETURN(LinearPart q, find("q_proj", q_rows));
  WW_ASSIGN_OR_RETURN(const LinearPart k, find("k_proj", kv_rows));
  WW_ASSIGN_OR_RETURN(const LinearPart v, find("v_proj", kv_rows));
  std::vector<LinearPart> parts;
  q.rows = head;
  const auto every_second_head = [&](int first) {
    for (int h = 0; h < config.num_q_heads; ++h) {
      q.first_row = (2 * h + first) * head;
      parts.push_back(q);
    }
  };
  every_second_head(0);
  parts.push_back(k);
  parts.push_back(v);
  every_second_head(1);
  auto packed = pack.target.pack(std::move(parts), GluActivation::none, false);
  for (const LinearPart& part : {q, k, v}) pack.source->release(part.weight);
  if (!packed.ok()) return packed.status().with_context(names.prefix + "q_proj.weight");
  return packed;
}

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
  const int64_t in_features = int64_t{config.hidden_size} * (traits.draft.reads_embedding ? 2 : 1);
  if (traits.attention_gate) {
    WW_ASSIGN_OR_RETURN(out.qkv.emplace_back(), build_gated_qkv(pack, names));
  } else if (*traits.attention_names.qkv != '\0') {
    WW_ASSIGN_OR_RETURN(out.qkv,
                        pack.linears({part(traits.attention_names.qkv, q_rows + 2 * kv_rows, bias)}, in_features));
  } else {
    WW_ASSIGN_OR_RETURN(out.qkv, pack.linears({part("q_proj", q_rows, bias), part("k_proj", kv_rows, bias),
                                               part("v_proj", kv_rows, bias)}, in_features));
  }
  WW_ASSIGN_OR_RETURN(out.o, pack.linear({part(traits.attention_names.o, config.hidden_size, traits.o_bias)}, q_rows));
  if (traits.qk_norm) {
    const bool wide = traits.wide_qk_norm;
    WW_ASSIGN_OR_RETURN(out.q_norm, pack.vector(names.prefix + traits.attention_names.q_norm + ".weight",
                                                wide ? q_rows : config.head_dim));
    WW_ASSIGN_OR_RETURN(out.k_norm, pack.vector(names.prefix + traits.attention_names.k_norm + ".weight",
                                                wide ? kv_rows : config.head_dim));
  }
  if (traits.sinks && pack.source->has(names.prefix + "sinks")) {
    WW_ASSIGN_OR_RETURN(out.sinks, pack.vector(names.prefix + "sinks", config.num_q_heads));
  }
  return out;
}

}  // namespace warpweave
