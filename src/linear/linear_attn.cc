#include "linear/linear_attn.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace warpweave {
namespace {

Status broken(std::string_view member, std::string_view rule) {
  return Status::invalid_argument(fmt::format("{}: {}", member, rule), std::string(member));
}

bool is_activation(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}
bool is_state(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

Status check_dim(std::string_view member, int dim) {
  if (dim >= 16 && dim <= kLinearAttnMaxHeadDim && dim % 16 == 0) return {};
  return broken(member, fmt::format("is {}; multiples of 16 up to {} run", dim, kLinearAttnMaxHeadDim));
}

Status check_shape(const LinearAttnShape& shape) {
  WW_RETURN_IF_ERROR(check_dim("shape.k_dim", shape.k_dim));
  WW_RETURN_IF_ERROR(check_dim("shape.v_dim", shape.v_dim));
  if (shape.k_heads < 1) return broken("shape.k_heads", fmt::format("is {}; at least 1", shape.k_heads));
  if (shape.v_heads < 1 || shape.v_heads % shape.k_heads != 0) {
    return broken("shape.v_heads",
                  fmt::format("is {}; a multiple of shape.k_heads ({})", shape.v_heads, shape.k_heads));
  }
  return {};
}

// `dim` contiguous elements per head; one head: rows without heads.
Status check_rows(std::string_view member, const LinearAttnRows& rows, int heads, int dim) {
  if (rows.data == nullptr) return broken(member, "is missing");
  if (!is_activation(rows.dtype)) {
    return broken(member, fmt::format("is {}; f32, bf16 and f16 run", dtype_info(rows.dtype).name));
  }
  if (heads > 1 && rows.head_stride < dim) {
    return broken(member, fmt::format("has head_stride {}; at least {}", rows.head_stride, dim));
  }
  const int64_t row = (heads - 1) * (heads > 1 ? rows.head_stride : 0) + dim;
  if (rows.token_stride < row) {
    return broken(member, fmt::format("has token_stride {}; at least {}", rows.token_stride, row));
  }
  return {};
}

Status check_f32_rows(std::string_view member, const LinearAttnRows& rows, int heads, int dim) {
  WW_RETURN_IF_ERROR(check_rows(member, rows, heads, dim));
  return rows.dtype == DType::f32 ? Status() : broken(member, "is not f32");
}

Status check_absent(std::string_view member, const LinearAttnRows& rows, std::string_view instead) {
  return rows.data == nullptr ? Status()
                              : broken(member, fmt::format("is given beside {}, which computes it", instead));
}

Status check_qkv(const LinearAttnCall& call) {
  const LinearAttnShape& shape = call.shape;
  if (call.conv == nullptr) {
    WW_RETURN_IF_ERROR(check_rows("q", call.q, shape.k_heads, shape.k_dim));
    WW_RETURN_IF_ERROR(check_rows("k", call.k, shape.k_heads, shape.k_dim));
    return check_rows("v", call.v, shape.v_heads, shape.v_dim);
  }
  WW_RETURN_IF_ERROR(check_absent("q", call.q, "conv"));
  WW_RETURN_IF_ERROR(check_absent("k", call.k, "conv"));
  WW_RETURN_IF_ERROR(check_absent("v", call.v, "conv"));
  const LinearAttnConv& conv = *call.conv;
  WW_RETURN_IF_ERROR(check_rows("conv.x", conv.x, 1, shape.conv_channels()));
  if (conv.width < 2 || conv.width > kLinearAttnMaxConvWidth) {
    return broken("conv.width", fmt::format("is {}; 2 to {} run", conv.width, kLinearAttnMaxConvWidth));
  }
  if (conv.weight == nullptr) return broken("conv.weight", "is missing");
  if (conv.v_weight.data != nullptr) {
    WW_RETURN_IF_ERROR(check_rows("conv.v_weight", conv.v_weight, 1, shape.v_heads * shape.v_dim * conv.width));
  }
  if (conv.state == nullptr) return broken("conv.state", "is missing");
  if (!is_state(conv.state_dtype)) return broken("conv.state_dtype", "is neither f32 nor bf16");
  const int64_t slot = int64_t{shape.conv_channels()} * (conv.width - 1);
  if (conv.slot_stride < slot) {
    return broken("conv.slot_stride", fmt::format("is {}; at least {}", conv.slot_stride, slot));
  }
  return {};
}

Status check_gates(const LinearAttnCall& call) {
  const LinearAttnShape& shape = call.shape;
  if (call.gates == nullptr) {
    WW_RETURN_IF_ERROR(check_f32_rows("g", call.g, shape.v_heads, shape.decay_dim()));
    return check_f32_rows("beta", call.beta, shape.v_heads, 1);
  }
  WW_RETURN_IF_ERROR(check_absent("g", call.g, "gates"));
  WW_RETURN_IF_ERROR(check_absent("beta", call.beta, "gates"));
  WW_RETURN_IF_ERROR(check_rows("gates.a", call.gates->a, shape.v_heads, shape.decay_dim()));
  WW_RETURN_IF_ERROR(check_rows("gates.b", call.gates->b, shape.v_heads, 1));
  return call.gates->a_log != nullptr ? Status() : broken("gates.a_log", "is missing");
}

}  // namespace

std::string_view linear_attn_kind_name(LinearAttnKind kind) {
  return kind == LinearAttnKind::kda ? "KDA" : "GDN";
}

std::string_view linear_attn_phase_name(LinearAttnPhase phase) {
  switch (phase) {
    case LinearAttnPhase::decode: return "decode";
    case LinearAttnPhase::extend: return "extend";
    case LinearAttnPhase::target_verify: return "target_verify";
    case LinearAttnPhase::commit: return "commit";
  }
  return "?";
}

Status check_linear_attn_call(const LinearAttnCall& call) {
  const LinearAttnShape& shape = call.shape;
  WW_RETURN_IF_ERROR(check_shape(shape));
  if (call.batch == nullptr) return broken("batch", "is missing");
  WW_RETURN_IF_ERROR(check_qkv(call));
  WW_RETURN_IF_ERROR(check_gates(call));
  if (call.norm != nullptr) {
    if (call.norm->weight == nullptr) return broken("norm.weight", "is missing");
    if (call.norm->z.data != nullptr) {
      WW_RETURN_IF_ERROR(check_rows("norm.z", call.norm->z, shape.v_heads, shape.v_dim));
    }
  }
  if (call.state.data == nullptr) return broken("state", "is missing");
  if (!is_state(call.state.dtype)) return broken("state.dtype", "is neither f32 nor bf16");
  const int64_t head = int64_t{shape.v_dim} * shape.k_dim;
  if (call.state.head_stride < head) {
    return broken("state.head_stride", fmt::format("is {}; at least {}", call.state.head_stride, head));
  }
  const int64_t slot = (shape.v_heads - 1) * call.state.head_stride + head;
  if (call.state.slot_stride < slot) {
    return broken("state.slot_stride", fmt::format("is {}; at least {}", call.state.slot_stride, slot));
  }
  if (call.out == nullptr) return broken("out", "is missing");
  if (!is_activation(call.out_dtype)) return broken("out_dtype", "is none of f32, bf16 and f16");
  const int64_t row = int64_t{shape.v_heads} * shape.v_dim;
  if (call.out_token_stride < row) {
    return broken("out_token_stride", fmt::format("is {}; at least {}", call.out_token_stride, row));
  }
  return {};
}

namespace {

Status check_parents(const LinearAttnBatch& batch, int request, int first, int tokens) {
  for (int i = 0; i < tokens; ++i) {
    const int parent = batch.parents[first + i];
    if (parent < -1 || parent >= i) {
      return broken("batch.parents", fmt::format("request {}, node {}: {} is not an earlier node", request, i, parent));
    }
  }
  return {};
}

// Slots that the batch writes, to find one that it writes twice.
class WrittenSlots {
 public:
  explicit WrittenSlots(int num_slots) : written_(static_cast<size_t>(std::max(0, num_slots))) {}
  Status add(std::string_view member, int request, int slot) {
    if (slot < 0 || slot >= static_cast<int>(written_.size())) {
      return broken(member, fmt::format("request {}: slot {} of {}", request, slot, written_.size()));
    }
    if (written_[slot]) return broken(member, fmt::format("request {}: slot {} is written twice", request, slot));
    written_[slot] = true;
    return {};
  }
  bool has(int slot) const { return written_[slot]; }

 private:
  std::vector<bool> written_;
};

Status check_checkpoints(const LinearAttnBatch& batch, int request, int tokens, WrittenSlots& written) {
  int before = 0;
  for (int i = batch.checkpoint_indptr[request]; i < batch.checkpoint_indptr[request + 1]; ++i) {
    const int at = batch.checkpoint_tokens[i];
    if (at <= before || at > tokens) {
      return broken("batch.checkpoint_tokens",
                    fmt::format("request {}: {} after {}, of {} tokens", request, at, before, tokens));
    }
    if (batch.checkpoints_end_chunks && at % kLinearAttnChunkTokens != 0 && at != tokens) {
      return broken("batch.checkpoints_end_chunks", fmt::format("request {}: {} is within a chunk", request, at));
    }
    before = at;
    WW_RETURN_IF_ERROR(written.add("batch.checkpoint_slots", request, batch.checkpoint_slots[i]));
  }
  return {};
}

}  // namespace

Status check_linear_attn_batch(const LinearAttnBatch& batch, int num_slots, LinearAttnPhase phase) {
  if (batch.num_requests < 0 || batch.num_tokens < 0) return broken("batch", "has a negative size");
  if (batch.num_requests > 0 && batch.slots == nullptr) return broken("batch.slots", "is missing");
  if (phase == LinearAttnPhase::decode && batch.q_indptr != nullptr) {
    return broken("batch.q_indptr", "is given to decode, where request r is row r");
  }
  if (phase == LinearAttnPhase::commit && batch.accepted == nullptr) return broken("batch.accepted", "is missing");
  const bool drafts = phase == LinearAttnPhase::target_verify || phase == LinearAttnPhase::commit;
  WrittenSlots written(num_slots);
  int longest = 0;
  if (batch.q_indptr != nullptr && batch.q_indptr[0] < 0) return broken("batch.q_indptr", "begins below 0");
  for (int r = 0; r < batch.num_requests; ++r) {
    const int64_t first = batch.q_indptr != nullptr ? batch.q_indptr[r] : r;
    const int64_t end = batch.q_indptr != nullptr ? batch.q_indptr[r + 1] : r + 1;
    if (end < first || end > batch.num_tokens) {
      return broken("batch.q_indptr",
                    fmt::format("request {} has rows {} to {} of {}", r, first, end, batch.num_tokens));
    }
    const int tokens = static_cast<int>(end - first);
    longest = std::max(longest, tokens);
    if (drafts && tokens > kLinearAttnMaxVerifyNodes) {
      return broken("batch.q_indptr",
                    fmt::format("request {} has {} drafted nodes; at most {}", r, tokens, kLinearAttnMaxVerifyNodes));
    }
    if (batch.slots[r] != -1) WW_RETURN_IF_ERROR(written.add("batch.slots", r, batch.slots[r]));
    if (batch.parents != nullptr) WW_RETURN_IF_ERROR(check_parents(batch, r, static_cast<int>(first), tokens));
    if (batch.accepted != nullptr && (batch.accepted[r] < -1 || batch.accepted[r] >= tokens)) {
      return broken("batch.accepted", fmt::format("request {}: node {} of {}", r, batch.accepted[r], tokens));
    }
    if (batch.checkpoint_indptr != nullptr && batch.slots[r] != -1) {
      WW_RETURN_IF_ERROR(check_checkpoints(batch, r, tokens, written));
    }
  }
  if (longest > batch.max_q_tokens) {
    return broken("batch.max_q_tokens", fmt::format("is {}; a request has {}", batch.max_q_tokens, longest));
  }
  for (int r = 0; batch.initial_slots != nullptr && r < batch.num_requests; ++r) {
    const int slot = batch.initial_slots[r];
    if (slot < -1 || slot >= num_slots) {
      return broken("batch.initial_slots", fmt::format("request {}: slot {} of {}", r, slot, num_slots));
    }
    if (slot >= 0 && slot != batch.slots[r] && written.has(slot)) {
      return broken("batch.initial_slots", fmt::format("request {}: slot {} is written by the same batch", r, slot));
    }
  }
  return {};
}

}  // namespace warpweave
