#include "linear/tile/tile_call.h"

#include <cassert>

namespace warpweave::linear_tile {
namespace {

constexpr int kPrepareRows = 16, kStepTile = 16;  // of prepare.cl and steps.cl

int divided_up(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }
tile_address address(const void* data) { return reinterpret_cast<tile_address>(data); }
int format_of(DType dtype) { return dtype == DType::bf16 ? 1 : dtype == DType::f16 ? 2
                                                                                   : 0; }

LinearTileRows rows_of(const LinearAttnRows& rows) {
  return {address(rows.data), rows.token_stride, rows.head_stride, format_of(rows.dtype), 0};
}

// Floats of a token in each array of the workspace.
struct RowFloats {
  int64_t q, k, v, decay, beta, out;
  int64_t all() const { return q + k + v + decay + beta + out; }
};
RowFloats row_floats(const TileSpec& spec) {
  const LinearAttnShape& s = spec.shape;
  const int64_t k_pad = spec.padded(s.k_dim), v_pad = spec.padded(s.v_dim);
  const bool kda = s.kind == LinearAttnKind::kda;
  return {s.k_heads * k_pad, s.k_heads * k_pad, s.v_heads * v_pad, s.v_heads * (kda ? k_pad : 1), s.v_heads,
          s.v_heads * v_pad};
}

void set_workspace(const TileSpec& spec, const LinearAttnCall& call, LinearTileArgs& args) {
  const RowFloats floats = row_floats(spec);
  const int64_t tokens = call.batch->num_tokens;
  assert(call.workspace_bytes >= sizeof(float) * floats.all() * tokens);
  const auto* next = static_cast<const float*>(call.workspace);
  const auto take = [&](int64_t of_token) {
    const float* array = next;
    next += of_token * tokens;
    return address(array);
  };
  args.row_q = take(floats.q);
  args.row_k = take(floats.k);
  args.row_v = take(floats.v);
  args.row_decay = take(floats.decay);
  args.row_beta = take(floats.beta);
  args.row_out = call.norm != nullptr ? take(floats.out) : 0;
}

void set_batch(const LinearAttnBatch& batch, LinearAttnPhase phase, LinearTileArgs& args) {
  args.num_requests = batch.num_requests;
  args.num_tokens = static_cast<int>(batch.num_tokens);
  args.q_indptr = address(batch.q_indptr);
  args.slots = address(batch.slots);
  args.initial_slots = address(batch.initial_slots);
  if (phase == LinearAttnPhase::extend) {
    args.checkpoint_indptr = address(batch.checkpoint_indptr);
    args.checkpoint_tokens = address(batch.checkpoint_tokens);
    args.checkpoint_slots = address(batch.checkpoint_slots);
  }
  const bool commits = phase == LinearAttnPhase::commit;
  if (commits || phase == LinearAttnPhase::target_verify) args.parents = address(batch.parents);
  if (commits) args.accepted = address(batch.accepted);
}

void set_conv(const LinearAttnConv& conv, LinearTileArgs& args) {
  args.x = rows_of(conv.x);
  args.v_weight = rows_of(conv.v_weight);
  args.conv_weight = address(conv.weight);
  args.conv_bias = address(conv.bias);
  args.conv_state = address(conv.state);
  args.conv_slot_stride = conv.slot_stride;
  args.conv_width = conv.width;
  args.conv_silu = conv.silu;
  args.conv_state_format = format_of(conv.state_dtype);
}

int mode_of(LinearAttnPhase phase) {
  switch (phase) {
    case LinearAttnPhase::decode: return LINEAR_DECODE;
    case LinearAttnPhase::extend: return LINEAR_EXTEND;
    case LinearAttnPhase::target_verify: return LINEAR_VERIFY;
    case LinearAttnPhase::commit: return LINEAR_COMMIT;
  }
  return LINEAR_DECODE;
}

}  // namespace

size_t workspace_bytes(const TileSpec& spec, const LinearAttnLimits& limits) {
  return sizeof(float) * row_floats(spec).all() * limits.max_tokens;
}

LinearTileArgs make_args(const TileSpec& spec, const LinearAttnCall& call, LinearAttnPhase phase) {
  LinearTileArgs args = {};
  args.mode = mode_of(phase);
  args.k_heads = call.shape.k_heads;
  args.v_heads = call.shape.v_heads;
  args.k_dim = call.shape.k_dim;
  args.v_dim = call.shape.v_dim;
  args.tile_v = spec.tile_v;
  args.channel_decay = call.shape.kind == LinearAttnKind::kda;
  if (call.conv != nullptr) {
    set_conv(*call.conv, args);
  } else {
    args.q = rows_of(call.q);
    args.k = rows_of(call.k);
    args.v = rows_of(call.v);
  }
  args.has_gates = call.gates != nullptr;
  args.decay = rows_of(call.gates != nullptr ? call.gates->a : call.g);
  args.beta = rows_of(call.gates != nullptr ? call.gates->b : call.beta);
  if (call.gates != nullptr) {
    args.a_log = address(call.gates->a_log);
    args.dt_bias = address(call.gates->dt_bias);
  }
  if (call.norm != nullptr) {
    args.z = rows_of(call.norm->z);
    args.norm_weight = address(call.norm->weight);
    args.norm_eps = call.norm->eps;
    args.norm_sigmoid = call.norm->gate == LinearAttnNormGate::sigmoid;
  }
  args.l2norm = call.l2norm;
  args.l2norm_eps = call.l2norm_eps;
  args.scale = call.scale;
  args.state = address(call.state.data);
  args.state_format = format_of(call.state.dtype);
  args.state_slot_stride = call.state.slot_stride;
  args.state_head_stride = call.state.head_stride;
  args.out = address(call.out);
  args.out_format = format_of(call.out_dtype);
  args.out_token_stride = call.out_token_stride;
  set_batch(*call.batch, phase, args);
  set_workspace(spec, call, args);
  return args;
}

std::vector<Launch> launches(const TileSpec& spec, const LinearAttnCall& call, LinearAttnPhase phase) {
  const LinearAttnBatch& batch = *call.batch;
  if (batch.num_requests == 0) return {};
  const LinearAttnShape& s = call.shape;
  const int row_groups = divided_up(batch.num_tokens, kPrepareRows);
  const bool verifies = phase == LinearAttnPhase::target_verify, commits = phase == LinearAttnPhase::commit;
  const bool by_steps = phase == LinearAttnPhase::decode || commits || (verifies && call.same_bits_drafted);
  std::vector<Launch> list;
  const auto add = [&](std::string_view kernel, int x, int y, int z) {
    if (x > 0) list.push_back({kernel, x, y, z, kernel == "chunks" ? chunk_local_bytes(spec) : 0});
  };
  add("prepare", row_groups, 2 * s.k_heads + s.v_heads, 1);
  if (by_steps) {
    add("steps", s.v_dim / kStepTile, s.v_heads, batch.num_requests);
  } else {
    add("chunks", divided_up(s.v_dim, spec.tile_v), s.v_heads, batch.num_requests);
  }
  if (call.conv != nullptr && !verifies) {
    add("conv_windows", divided_up(s.conv_channels(), spec.warps * spec.lane_count), batch.num_requests, 1);
  }
  if (call.norm != nullptr && !commits) add("norm_outputs", row_groups, s.v_heads, 1);
  return list;
}

}  // namespace warpweave::linear_tile
