// Finds and packs the weights of a gated delta net, whose checkpoints keep the parts of a k head side by side.
#pragma once

#include <string>
#include <vector>

#include "model/layers/gdn_weights.h"
#include "model/recurrent.h"
#include "model/tensor_packer.h"

namespace warpweave {

template <typename Target>
auto build_gdn(TensorPacker<Target>& pack, const BranchNames& names) -> Result<GdnWeightsOf<typename Target::Device>> {
  const ModelConfig& config = pack.config;
  GdnWeightsOf<typename Target::Device> out;
  WW_ASSIGN_OR_RETURN(out.norms, pack.norms(names));
  auto& layer = out.layer;
  layer.shape = linear_attn_shape(config);
  layer.conv_width = config.linear->conv_width;
  layer.norm_eps = static_cast<float>(config.norm_eps);
  const int64_t hidden = config.hidden_size, channels = layer.shape.conv_channels();

  const std::string name = names.prefix + "in_proj_qkvz.weight";
  const int64_t qkvz_shape[] = {channels + layer.v_width(), hidden}, ba_shape[] = {2 * layer.shape.v_heads, hidden};
  WW_ASSIGN_OR_RETURN(const TensorView qkvz, pack.source->find(name, qkvz_shape));
  WW_ASSIGN_OR_RETURN(const TensorView ba, pack.source->find(names.prefix + "in_proj_ba.weight", ba_shape));
  WW_ASSIGN_OR_RETURN(std::vector<LinearPart> parts, gdn_grouped_input(layer.shape, qkvz, ba));
  for (LinearPart& part : parts) part.stays = true;
  auto in = pack.target.pack(std::move(parts), GluActivation::none, false);
  pack.source->release(qkvz);
  pack.source->release(ba);
  if (!in.ok()) return in.status().with_context(name);
  layer.in = std::move(in).value();
  WW_ASSIGN_OR_RETURN(layer.out, pack.linear({{names.prefix + "out_proj.weight", hidden, ""}}, layer.v_width()));

  const int64_t conv_shape[] = {channels, 1, layer.conv_width};
  WW_ASSIGN_OR_RETURN(TensorView conv, pack.source->find(names.prefix + "conv1d.weight", conv_shape));
  conv.rank = 1;
  conv.shape = {channels * layer.conv_width};
  WW_ASSIGN_OR_RETURN(layer.conv_weight, pack.target.vector(conv));
  WW_ASSIGN_OR_RETURN(layer.a_log, pack.vector(names.prefix + "A_log", layer.shape.v_heads));
  WW_ASSIGN_OR_RETURN(layer.dt_bias, pack.vector(names.prefix + "dt_bias", layer.shape.v_heads));
  WW_ASSIGN_OR_RETURN(layer.norm_weight, pack.vector(names.prefix + "norm.weight", layer.shape.v_dim));
  return out;
}

}  // namespace warpweave
