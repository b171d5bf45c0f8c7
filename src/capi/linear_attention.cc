#include "capi/linear_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "capi/tensor_args.h"
#include "linear/cpu/cpu_linear_attn.h"

namespace warpweave::capi {
namespace {

constexpr int64_t kMostHeads = 1 << 14, kMostDim = 1 << 20, kMostSlots = 1 << 20;
constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();  // what q_indptr can count

// The parts of a call, which point to each other.
struct Parts {
  LinearAttnCall call;
  LinearAttnBatch batch;
  LinearAttnGates gates;
  std::vector<int32_t> slots, fresh, single;
  int64_t num_slots = 0;
  Place place = Place::cpu;
};

// The last `rank` dimensions of a tensor of `rank` or one more, in bounds. Rows come first; a dimension before them
// counts to them, too.
Status read_dims(const ww_tensor* tensor, const char* name, int rank, int64_t* dims) {
  if (tensor == nullptr || tensor->shape == nullptr || (tensor->ndim != rank && tensor->ndim != rank + 1)) {
    return Status::invalid_argument(fmt::format("{}: must have {} or {} dimensions", name, rank, rank + 1), name);
  }
  const int first = tensor->ndim - rank;
  std::copy_n(tensor->shape + first, rank, dims);
  for (int i = 1; i < rank; ++i) {
    if (dims[i] < 1 || dims[i] > kMostDim) {
      return Status::invalid_argument(
          fmt::format("{}: dimension {} is {}, must be 1 to {}", name, first + i, dims[i], kMostDim), name);
    }
  }
  const int64_t batches = first > 0 ? tensor->shape[0] : 1;
  if (batches < 0 || dims[0] < 0 || (batches > 0 && dims[0] > kMostTokens / batches)) {
    return Status::invalid_argument(
        fmt::format("{}: has {} times {} rows, must have 0 to {}", name, batches, dims[0], kMostTokens), name);
  }
  dims[0] *= batches;
  return {};
}

Status read_shape(const ww_linear_args& args, LinearAttnShape& shape, int64_t& tokens) {
  if (args.kind != WW_LINEAR_GDN && args.kind != WW_LINEAR_KDA) {
    return Status::invalid_argument(fmt::format("kind: is {}, must be WW_LINEAR_GDN or WW_LINEAR_KDA", args.kind),
                                    "kind");
  }
  int64_t q[3], v[3];
  WW_RETURN_IF_ERROR(read_dims(args.q, "q", 3, q));
  WW_RETURN_IF_ERROR(read_dims(args.v, "v", 3, v));
  for (const auto& [heads, name] : {std::pair(q[1], "q"), std::pair(v[1], "v")}) {
    if (heads > kMostHeads)
      return Status::invalid_argument(fmt::format("{}: has {} heads, must have 1 to {}", name, heads, kMostHeads),
                                      name);
  }
  shape = {args.kind == WW_LINEAR_KDA ? LinearAttnKind::kda : LinearAttnKind::gdn, static_cast<int>(q[1]),
           static_cast<int>(v[1]), static_cast<int>(q[2]), static_cast<int>(v[2])};
  tokens = q[0];
  return {};
}

// Rows with one stride for all. A stride is of no account along a dimension of one element.
Result<LinearAttnRows> read_tokens(const ww_tensor* tensor, const RowsSpec& spec) {
  WW_ASSIGN_OR_RETURN(const RowsView view, read_rows(tensor, spec));
  LinearAttnRows rows{view.data, view.dtype, view.row_stride, spec.heads > 1 ? view.head_stride : spec.dim};
  if (view.rows <= 1) {
    rows.token_stride = spec.heads * rows.head_stride;
  } else if (view.rows_per_batch == 1) {
    rows.token_stride = view.batch_stride;
  } else if (view.rows > view.rows_per_batch && view.batch_stride != view.rows_per_batch * view.row_stride) {
    return Status::invalid_argument(
        fmt::format("{}: its batches must follow each other at the stride of its rows", spec.name), spec.name);
  }
  return rows;
}

// A tensor [tokens, heads] of any of the three types, as rows of heads of one element.
Result<LinearAttnRows> read_scalars(const ww_tensor* tensor, const RowsSpec& spec) {
  if (tensor == nullptr || tensor->shape == nullptr || tensor->ndim < 2 || tensor->ndim > 3) {
    return Status::invalid_argument(fmt::format("{}: must be [tokens, heads]", spec.name), spec.name);
  }
  int64_t shape[4], strides[4];
  ww_tensor with_dim = *tensor;
  *std::copy_n(tensor->shape, tensor->ndim, shape) = 1;
  with_dim.ndim = tensor->ndim + 1, with_dim.shape = shape;
  if (tensor->strides != nullptr) {
    *std::copy_n(tensor->strides, tensor->ndim, strides) = 1;
    with_dim.strides = strides;
  }
  return read_tokens(&with_dim, spec);
}

// A compact f32 array of `count` values, in up to two dimensions.
Result<const float*> read_array(const ww_tensor* tensor, const char* name, int count, Place place) {
  int64_t elements = 1;
  bool compact = tensor != nullptr && tensor->shape != nullptr && tensor->ndim <= 2;
  for (int i = compact ? tensor->ndim - 1 : -1; compact && i >= 0; --i) {
    const int64_t size = tensor->shape[i];
    compact = size >= 0 && size <= count && (tensor->strides == nullptr || size == 1 || tensor->strides[i] == elements);
    if (compact) elements *= size;
  }
  if (!compact || elements != count) {
    return Status::invalid_argument(fmt::format("{}: must be a compact array of {} f32 values", name, count), name);
  }
  int64_t shape[3] = {1, 1, count};
  ww_tensor row = *tensor;
  row.ndim = 3, row.shape = shape, row.strides = nullptr;
  WW_ASSIGN_OR_RETURN(const RowsView view, read_rows(&row, {name, 1, 1, count, place}));
  if (view.dtype != DType::f32) return Status::invalid_argument(fmt::format("{}: must be f32", name), name);
  return reinterpret_cast<const float*>(view.data);
}

Status read_gates(const ww_linear_args& args, int64_t tokens, Parts& parts) {
  const LinearAttnShape& s = parts.call.shape;
  const bool kda = s.kind == LinearAttnKind::kda;
  const auto decays = [&](const ww_tensor* tensor, const char* name) {
    const RowsSpec spec = {name, tokens, s.v_heads, s.decay_dim(), parts.place};
    return kda ? read_tokens(tensor, spec) : read_scalars(tensor, spec);
  };
  const auto scalars = [&](const ww_tensor* tensor, const char* name) {
    return read_scalars(tensor, {name, tokens, s.v_heads, 1, parts.place});
  };
  if (args.a_log == nullptr) {
    if (args.a != nullptr || args.b != nullptr || args.dt_bias != nullptr) {
      return Status::invalid_argument("a, b, dt_bias: must be NULL without a_log; g and beta stand in their place",
                                      "a");
    }
    WW_ASSIGN_OR_RETURN(parts.call.g, decays(args.g, "g"));
    WW_ASSIGN_OR_RETURN(parts.call.beta, scalars(args.beta, "beta"));
    return {};
  }
  if (args.g != nullptr || args.beta != nullptr) {
    return Status::invalid_argument("g, beta: must be NULL beside a_log, which makes them from a and b", "g");
  }
  WW_ASSIGN_OR_RETURN(parts.gates.a, decays(args.a, "a"));
  WW_ASSIGN_OR_RETURN(parts.gates.b, scalars(args.b, "b"));
  WW_ASSIGN_OR_RETURN(parts.gates.a_log, read_array(args.a_log, "a_log", s.v_heads, parts.place));
  if (args.dt_bias != nullptr) {
    WW_ASSIGN_OR_RETURN(parts.gates.dt_bias,
                        read_array(args.dt_bias, "dt_bias", s.v_heads * s.decay_dim(), parts.place));
  }
  parts.call.gates = &parts.gates;
  return {};
}

Status read_state(const ww_linear_args& args, Parts& parts) {
  const LinearAttnShape& s = parts.call.shape;
  int64_t dims[4];
  if (args.state == nullptr || args.state->ndim != 4) {
    return Status::invalid_argument("state: must be [slots, v_heads, v_dim, k_dim]", "state");
  }
  WW_RETURN_IF_ERROR(read_dims(args.state, "state", 4, dims));
  if (dims[0] > kMostSlots || dims[1] != s.v_heads) {
    return Status::invalid_argument(
        fmt::format("state: has {} heads in {} slots; v has {} heads", dims[1], dims[0], s.v_heads), "state");
  }
  WW_ASSIGN_OR_RETURN(const RowsView view,
                      read_rows(args.state, {"state", dims[0] * s.v_heads, s.v_dim, s.k_dim, parts.place}));
  if (view.head_stride != s.k_dim || view.dtype == DType::f16) {
    return Status::invalid_argument("state: must be f32 or bf16, each head's [v_dim, k_dim] dense", "state");
  }
  const int64_t head_stride = s.v_heads > 1 ? view.row_stride : int64_t{s.v_dim} * s.k_dim;
  const int64_t slot_stride = dims[0] > 1 ? view.batch_stride : s.v_heads * head_stride;
  if (parts.place == Place::gpu &&
      is_misaligned(view.data, {slot_stride, head_stride}, dtype_info(view.dtype).block_bytes * 8)) {
    return Status::invalid_argument(
        "state: on a GPU its start and the strides of slots and heads must be multiples of 16 bytes", "state");
  }
  parts.num_slots = dims[0];
  parts.call.state = {view.data, view.dtype, slot_stride, head_stride};
  return {};
}

Status read_batch(const ww_linear_args& args, int64_t tokens, Parts& parts) {
  LinearAttnBatch& batch = parts.batch;
  if (args.num_requests < 0 || args.num_requests > kMostSlots) {
    return Status::invalid_argument(fmt::format("num_requests: is {}, must be 0 to {}", args.num_requests, kMostSlots),
                                    "num_requests");
  }
  batch.num_requests = args.num_requests;
  batch.num_tokens = tokens;
  batch.q_indptr = args.q_indptr;
  int64_t longest = 1;
  for (int r = 0; args.q_indptr != nullptr && r < args.num_requests; ++r) {
    longest = std::max(longest, int64_t{args.q_indptr[r + 1]} - args.q_indptr[r]);
  }
  batch.max_q_tokens = static_cast<int>(std::min(longest, kMostTokens));
  const int64_t end = args.q_indptr != nullptr ? args.q_indptr[args.num_requests] : args.num_requests;
  if (end > tokens) {
    return Status::invalid_argument(fmt::format("q_indptr: ends at token {}, q has {}", end, tokens), "q_indptr");
  }
  for (int r = 0; r < args.num_requests; ++r) parts.slots.push_back(args.slots != nullptr ? args.slots[r] : r);
  batch.slots = parts.slots.data();
  if (args.from_zeros != 0) {
    parts.fresh.assign(args.num_requests, -1);
    batch.initial_slots = parts.fresh.data();
  }
  parts.call.batch = &batch;
  const auto phase = args.q_indptr == nullptr ? LinearAttnPhase::decode : LinearAttnPhase::extend;
  return check_linear_attn_batch(batch, static_cast<int>(parts.num_slots), phase);
}

Status read_numbers(const ww_linear_args& args, LinearAttnCall& call) {
  if (!std::isfinite(args.scale) || !std::isfinite(args.l2norm_eps) || args.l2norm_eps < 0) {
    return Status::invalid_argument("scale, l2norm_eps: must be finite, l2norm_eps at least 0", "scale");
  }
  call.l2norm = args.l2norm != 0;
  if (args.l2norm_eps != 0) call.l2norm_eps = args.l2norm_eps;
  call.scale = args.scale != 0 ? args.scale : 1 / std::sqrt(static_cast<float>(call.shape.k_dim));
  call.exact = args.exact != 0 || call.q.dtype == DType::f32;
  call.any_form = args.deterministic == 0;
  return {};
}

Status read_call(const ww_linear_args& args, Parts& parts) {
  int64_t tokens = 0;
  LinearAttnCall& call = parts.call;
  WW_RETURN_IF_ERROR(read_shape(args, call.shape, tokens));
  const LinearAttnShape& s = call.shape;
  parts.place = args.q->device.device_type == WW_DEVICE_CUDA ? Place::gpu : Place::cpu;
  WW_ASSIGN_OR_RETURN(call.q, read_tokens(args.q, {"q", tokens, s.k_heads, s.k_dim, parts.place}));
  WW_ASSIGN_OR_RETURN(call.k, read_tokens(args.k, {"k", tokens, s.k_heads, s.k_dim, parts.place}));
  WW_ASSIGN_OR_RETURN(call.v, read_tokens(args.v, {"v", tokens, s.v_heads, s.v_dim, parts.place}));
  WW_RETURN_IF_ERROR(read_gates(args, tokens, parts));
  WW_RETURN_IF_ERROR(read_state(args, parts));
  WW_ASSIGN_OR_RETURN(const LinearAttnRows out,
                      read_tokens(args.out, {"out", tokens, s.v_heads, s.v_dim, parts.place}));
  if (out.head_stride != s.v_dim) return Status::invalid_argument("out: its heads must be v_dim apart", "out");
  call.out = const_cast<void*>(out.data);
  call.out_dtype = out.dtype;
  call.out_token_stride = out.token_stride;
  call.stream = args.stream;
  WW_RETURN_IF_ERROR(read_numbers(args, call));
  WW_RETURN_IF_ERROR(read_batch(args, tokens, parts));
  return check_linear_attn_call(call);
}

}  // namespace

Status linear_attention(Context& context, const ww_linear_args& args) {
  Parts parts;
  WW_RETURN_IF_ERROR(read_call(args, parts));
  LinearAttnCall& call = parts.call;
  if (parts.batch.num_requests == 0) return {};
  if (parts.place == Place::gpu) return linear_attention_on_gpu(call);
  const auto kernel = make_cpu_linear_attn(context.team);
  call.workspace_bytes = kernel->workspace_bytes(call.shape, {parts.batch.num_requests, parts.batch.num_tokens, 0});
  if (context.scratch.size() < call.workspace_bytes) context.scratch = AlignedBuffer::allocate(call.workspace_bytes);
  if (context.scratch.data() == nullptr) {
    return Status::resource_exhausted(
        fmt::format("ww_linear_attention: no memory for {} bytes of scratch", call.workspace_bytes));
  }
  call.workspace = context.scratch.data();
  parts.batch.q_indptr == nullptr ? kernel->decode(call) : kernel->extend(call);
  return {};
}

}  // namespace warpweave::capi
