#include "linear/gdn_layer.h"

#include <fmt/format.h>

#include <cmath>

#include "ops/elementwise.h"

namespace warpweave {
namespace {

Status check_rows(std::string_view tensor, const TensorView& weight, int64_t rows) {
  if (weight.rank == 2 && weight.shape[0] == rows) return {};
  return Status::invalid_argument(fmt::format("{} has {} rows; the layer's heads need {}", tensor,
                                              weight.rank == 2 ? weight.shape[0] : 0, rows),
                                  std::string(tensor));
}

}  // namespace

Result<std::vector<LinearPart>> gdn_grouped_input(const LinearAttnShape& shape, const TensorView& qkvz,
                                                  const TensorView& ba) {
  const int64_t v_rows = int64_t{shape.heads_per_k()} * shape.v_dim, group = 2 * shape.k_dim + 2 * v_rows;
  WW_RETURN_IF_ERROR(check_rows("in_proj_qkvz", qkvz, shape.k_heads * group));
  WW_RETURN_IF_ERROR(check_rows("in_proj_ba", ba, 2 * shape.v_heads));
  std::vector<LinearPart> parts;
  struct Part { int64_t first, rows; };
  for (const Part& part : {Part{0, shape.k_dim}, {shape.k_dim, shape.k_dim}, {2 * shape.k_dim, v_rows},
                           {2 * shape.k_dim + v_rows, v_rows}}) {
    for (int h = 0; h < shape.k_heads; ++h) {
      parts.push_back({.weight = qkvz, .bias = {}, .first_row = h * group + part.first, .rows = part.rows});
    }
  }
  for (int64_t second : {0, 1}) {  // b, then a
    for (int64_t h = 0; h < shape.k_heads; ++h) {
      parts.push_back(
          {.weight = ba, .bias = {}, .first_row = (2 * h + second) * shape.heads_per_k(), .rows = shape.heads_per_k()});
    }
  }
  return parts;
}

namespace {

struct LowRank {
  const PackedLinear& down;
  const PackedLinear& up;
  int64_t column;      // of the row
  bool silu = false;   // between them
};

void run_low_rank(const GdnLayerCall& call, const LowRank& part, int64_t width, ThreadTeam& team) {
  const int64_t rank = part.down.out_features(), tokens = call.batch->num_tokens;
  part.down.forward(call.x, {.data = call.low, .row_stride = rank}, team);
  if (part.silu) activate_rows(GluActivation::silu, {call.low, tokens, rank, DType::f32}, team);
  part.up.forward({.data = call.low, .rows = tokens, .row_stride = rank},
                  {.data = call.rows + part.column, .row_stride = width}, team);
}

}  // namespace

Status run_gdn_heads(const GdnLayerWeights& weights, const GdnLayerCall& call, LinearAttnDispatcher& kernels,
                     ThreadTeam& team) {
  const LinearAttnShape& shape = weights.shape;
  const int64_t width = weights.row_width(), v_width = weights.v_width();
  const auto part = [&](int64_t at, int64_t head_stride) {
    return LinearAttnRows{call.rows + at, DType::f32, width, head_stride};
  };
  const LinearAttnConv conv{.x = part(0, shape.conv_channels()),
                            .weight = weights.conv_weight.data(),
                            .v_weight = weights.token_weights ? part(weights.weight_column(), 0) : LinearAttnRows{},
                            .width = weights.conv_width,
                            .state = call.conv_state,
                            .state_dtype = call.conv_state_dtype,
                            .slot_stride = call.conv_slot_stride};
  const LinearAttnGates gates{.a = part(weights.a_column(), shape.decay_dim()), .b = part(weights.b_column(), 1),
                              .a_log = weights.a_log.data(), .dt_bias = weights.dt_bias.data()};
  const LinearAttnNorm norm{.z = part(weights.z_column(), shape.v_dim),
                            .weight = weights.norm_weight.data(),
                            .eps = weights.norm_eps,
                            .gate = weights.norm_gate()};
  LinearAttnCall attention;
  attention.shape = shape;
  attention.batch = call.batch;
  attention.conv = &conv;
  attention.gates = &gates;
  attention.norm = &norm;
  attention.l2norm = true;
  attention.same_bits_drafted = call.same_bits_drafted;
  attention.scale = 1 / std::sqrt(static_cast<float>(shape.k_dim));
  attention.state = call.state;
  attention.out = call.heads;
  attention.out_token_stride = v_width;
  attention.workspace = call.workspace;
  attention.workspace_bytes = call.workspace_bytes;
  WW_RETURN_IF_ERROR(check_linear_attn_call(attention));
  if (call.phase == LinearAttnPhase::commit) {
    kernels.commit(attention);
    return kernels.take_failure();
  }
  weights.in.forward(call.x, {.data = call.rows, .row_stride = width}, team);
  if (weights.is_kda()) {
    run_low_rank(call, {weights.a_down, weights.a_up, weights.a_column()}, width, team);
    run_low_rank(call, {weights.z_down, weights.z_up, weights.z_column()}, width, team);
  }
  if (weights.token_weights) {
    run_low_rank(call, {weights.weight_down, weights.weight_up, weights.weight_column(), true}, width, team);
  }
  switch (call.phase) {
    case LinearAttnPhase::decode: kernels.decode(attention); break;
    case LinearAttnPhase::target_verify: kernels.target_verify(attention); break;
    default: kernels.extend(attention);
  }
  return kernels.take_failure();
}

Status run_gdn_layer(const GdnLayerWeights& weights, const GdnLayerCall& call, LinearAttnDispatcher& kernels,
                     ThreadTeam& team) {
  WW_RETURN_IF_ERROR(run_gdn_heads(weights, call, kernels, team));
  if (call.phase == LinearAttnPhase::commit) return {};
  const int64_t width = weights.v_width();
  weights.out.forward({.data = call.heads, .rows = call.batch->num_tokens, .row_stride = width}, call.y, team);
  return {};
}

}  // namespace warpweave
