// Finds and packs the weights of a gated delta net.
#pragma once

#include <string>
#include <vector>

#include "model/layers/gdn_weights.h"
#include "model/recurrent.h"
#include "model/tensor_packer.h"

namespace warpweave {

// Qwen3-Next's: each k head has its q, k, v and z side by side, then its b and a.
template <typename Target>
auto build_grouped_gdn_input(TensorPacker<Target>& pack, const BranchNames& names, const LinearAttnShape& shape)
    -> Result<typename Target::Device::Linear> {
  const int64_t hidden = pack.config.hidden_size, v_width = int64_t{shape.v_heads} * shape.v_dim;
  const std::string name = names.prefix + "in_proj_qkvz.weight";
  const int64_t qkvz_shape[] = {shape.conv_channels() + v_width, hidden}, ba_shape[] = {2 * shape.v_heads, hidden};
  WW_ASSIGN_OR_RETURN(const TensorView qkvz, pack.source->find(name, qkvz_shape));
  WW_ASSIGN_OR_RETURN(const TensorView ba, pack.source->find(names.prefix + "in_proj_ba.weight", ba_shape));
  WW_ASSIGN_OR_RETURN(std::vector<LinearPart> parts, gdn_grouped_input(shape, qkvz, ba));
  for (LinearPart& part : parts) part.stays = true;
  auto in = pack.target.pack(std::move(parts), GluActivation::none, false);
  pack.source->release(qkvz);
  pack.source->release(ba);
  if (!in.ok()) return in.status().with_context(name);
  return in;
}

// A matrix of the mixer.
inline PartName mixer_part(const BranchNames& names, const std::string& name, int64_t rows) {
  return {names.prefix + name + ".weight", rows, ""};
}

// b of every v head, then a.
inline std::vector<PartName> gdn_gate_parts(const FamilyTraits& traits, const BranchNames& names,
                                            const LinearAttnShape& shape) {
  const int64_t heads = shape.v_heads;
  if (!traits.joined_gates) return {mixer_part(names, "in_proj_b", heads), mixer_part(names, "in_proj_a", heads)};
  std::vector<PartName> out;
  for (const int64_t second : {0, 1}) {
    for (int64_t h = 0; h < shape.k_heads; ++h) {
      PartName& part = out.emplace_back(mixer_part(names, "in_proj_ba", shape.heads_per_k()));
      part.first_row = (2 * h + second) * shape.heads_per_k();
      part.of_rows = 2 * heads;
    }
  }
  return out;
}

// What each kind begins with.
template <typename Target>
auto begin_gdn(TensorPacker<Target>& pack, const BranchNames& names, double norm_eps)
    -> Result<GdnWeightsOf<typename Target::Device>> {
  GdnWeightsOf<typename Target::Device> out;
  WW_ASSIGN_OR_RETURN(out.norms, pack.norms(names));
  out.layer.shape = linear_attn_shape(pack.config);
  out.layer.conv_width = pack.config.linear->conv_width;
  out.layer.norm_eps = static_cast<float>(norm_eps);
  return out;
}

// Kimi Linear's: a GEMM of q, k, v and b, and the gates' low ranks.
template <typename Target, typename Layer>
Status build_kda_input(TensorPacker<Target>& pack, const BranchNames& names, Layer& layer) {
  const LinearAttnShape& shape = layer.shape;
  const int64_t hidden = pack.config.hidden_size, rank = shape.k_dim, keys = int64_t{shape.k_heads} * shape.k_dim;
  const auto part = [&](const char* name, int64_t rows) { return mixer_part(names, name, rows); };
  WW_ASSIGN_OR_RETURN(layer.in, pack.linear({part("q_proj", keys), part("k_proj", keys),
                                             part("v_proj", layer.v_width()), part("b_proj", shape.v_heads)},
                                            hidden));
  WW_ASSIGN_OR_RETURN(layer.a_down, pack.linear({part("f_a_proj", rank)}, hidden));
  WW_ASSIGN_OR_RETURN(layer.a_up, pack.linear({part("f_b_proj", layer.a_width())}, rank));
  WW_ASSIGN_OR_RETURN(layer.z_down, pack.linear({part("g_a_proj", rank)}, hidden));
  WW_ASSIGN_OR_RETURN(layer.z_up, pack.linear({part("g_b_proj", layer.v_width())}, rank));
  return {};
}

// The taps of several convolutions, of channels one below the other.
template <typename Target>
auto build_conv(TensorPacker<Target>& pack, const std::vector<PartName>& names, int64_t width)
    -> Result<typename Target::Device::Vector> {
  std::vector<float> taps;
  for (const PartName& name : names) {
    const int64_t shape[] = {name.rows, 1, width};
    WW_ASSIGN_OR_RETURN(const TensorView view, pack.source->find(name.weight, shape));
    const std::vector<float> part = widened(view);
    taps.insert(taps.end(), part.begin(), part.end());
  }
  return pack.target.vector(
      {.data = taps.data(), .dtype = DType::f32, .rank = 1, .shape = {static_cast<int64_t>(taps.size())}});
}

template <typename Target>
auto build_kda(TensorPacker<Target>& pack, const BranchNames& names) -> Result<GdnWeightsOf<typename Target::Device>> {
  WW_ASSIGN_OR_RETURN(auto out, begin_gdn(pack, names, pack.config.norm_eps));
  auto& layer = out.layer;
  WW_RETURN_IF_ERROR(build_kda_input(pack, names, layer));
  WW_ASSIGN_OR_RETURN(layer.out, pack.linear({mixer_part(names, "o_proj", pack.config.hidden_size)}, layer.v_width()));
  const int64_t keys = int64_t{layer.shape.k_heads} * layer.shape.k_dim, heads = layer.shape.v_heads;
  const auto conv = [&](const char* name, int64_t rows) { return mixer_part(names, name, rows); };
  WW_ASSIGN_OR_RETURN(layer.conv_weight, build_conv(pack, {conv("q_conv1d", keys), conv("k_conv1d", keys),
                                                           conv("v_conv1d", layer.v_width())}, layer.conv_width));
  const int64_t a_shape[] = {1, 1, heads, 1};
  WW_ASSIGN_OR_RETURN(layer.a_log, pack.flat_vector(names.prefix + "A_log", a_shape));
  WW_ASSIGN_OR_RETURN(layer.dt_bias, pack.vector(names.prefix + "dt_bias", layer.a_width()));
  WW_ASSIGN_OR_RETURN(layer.norm_weight, pack.vector(names.prefix + "o_norm.weight", layer.shape.v_dim));
  return out;
}

// Jet-Nemotron's: q and k pass their activation as they are, a convolution of the newest row alone; v's weights are
// made of each token.
template <typename Target>
auto build_jet(TensorPacker<Target>& pack, const BranchNames& names) -> Result<GdnWeightsOf<typename Target::Device>> {
  const ModelConfig& config = pack.config;
  WW_ASSIGN_OR_RETURN(auto out, begin_gdn(pack, names, config.linear->norm_eps));
  auto& layer = out.layer;
  layer.token_weights = true;
  const int64_t hidden = config.hidden_size, heads = layer.shape.v_heads, rank = config.linear->generator_rank;
  const int64_t keys = int64_t{layer.shape.k_heads} * layer.shape.k_dim, channels = layer.shape.conv_channels();
  const auto part = [&](const char* name, int64_t rows) { return mixer_part(names, name, rows); };
  WW_ASSIGN_OR_RETURN(layer.in,
                      pack.linear({part("q_proj", keys), part("k_proj", keys), part("v_proj", layer.v_width()),
                                   part("g_proj", layer.v_width()), part("b_proj", heads), part("a_proj", heads)},
                                  hidden));
  const std::string generator = names.prefix + "dynamic_conv1d.kernel_generator.";
  WW_ASSIGN_OR_RETURN(layer.weight_down, pack.linear({{generator + "w1.weight", rank, ""}}, hidden));
  WW_ASSIGN_OR_RETURN(layer.weight_up, pack.linear({{generator + "w2.weight", layer.v_width() * layer.conv_width,
                                                     generator + "w2.bias"}}, rank));
  WW_ASSIGN_OR_RETURN(layer.out, pack.linear({part("o_proj", hidden)}, layer.v_width()));
  std::vector<float> newest(channels * layer.conv_width);
  for (int64_t c = 0; c < channels; ++c) newest[(c + 1) * layer.conv_width - 1] = 1;
  WW_ASSIGN_OR_RETURN(layer.conv_weight, pack.target.vector({.data = newest.data(), .dtype = DType::f32, .rank = 1,
                                                             .shape = {static_cast<int64_t>(newest.size())}}));
  WW_ASSIGN_OR_RETURN(layer.a_log, pack.vector(names.prefix + "A_log", heads));
  WW_ASSIGN_OR_RETURN(layer.dt_bias, pack.vector(names.prefix + "dt_bias", heads));
  WW_ASSIGN_OR_RETURN(layer.norm_weight, pack.vector(names.prefix + "o_norm.weight", layer.shape.v_dim));
  return out;
}

template <typename Target>
auto build_gdn(TensorPacker<Target>& pack, const BranchNames& names) -> Result<GdnWeightsOf<typename Target::Device>> {
  const ModelConfig& config = pack.config;
  WW_ASSIGN_OR_RETURN(auto out, begin_gdn(pack, names, config.norm_eps));
  auto& layer = out.layer;
  const int64_t hidden = config.hidden_size, channels = layer.shape.conv_channels();

  if (pack.traits.split_linear_input) {
    std::vector<PartName> parts = {mixer_part(names, "in_proj_qkv", channels),
                                   mixer_part(names, "in_proj_z", layer.v_width())};
    for (PartName& gate : gdn_gate_parts(pack.traits, names, layer.shape)) parts.push_back(std::move(gate));
    WW_ASSIGN_OR_RETURN(layer.in, pack.linear(parts, hidden));
  } else {
    WW_ASSIGN_OR_RETURN(layer.in, build_grouped_gdn_input(pack, names, layer.shape));
  }
  WW_ASSIGN_OR_RETURN(layer.out, pack.linear({mixer_part(names, "out_proj", hidden)}, layer.v_width()));

  const int64_t conv_shape[] = {channels, 1, layer.conv_width};
  WW_ASSIGN_OR_RETURN(layer.conv_weight, pack.flat_vector(names.prefix + "conv1d.weight", conv_shape));
  WW_ASSIGN_OR_RETURN(layer.a_log, pack.vector(names.prefix + "A_log", layer.shape.v_heads));
  WW_ASSIGN_OR_RETURN(layer.dt_bias, pack.vector(names.prefix + "dt_bias", layer.shape.v_heads));
  WW_ASSIGN_OR_RETURN(layer.norm_weight, pack.vector(names.prefix + "norm.weight", layer.shape.v_dim));
  return out;
}

}  // namespace warpweave
