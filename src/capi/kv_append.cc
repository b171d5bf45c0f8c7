#include "capi/kv_append.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "capi/gpu.h"
#include "capi/tensor_args.h"
#include "kv/kv_codec.h"

namespace warpweave::capi {
namespace {

constexpr int64_t kMinParallelElements = 1 << 14;

// Heads and dim of a KV tensor, for calls without a plan.
Result<KvSpec> kv_spec_of(const ww_kv_cache& kv, const ww_tensor* k_new, const ww_tensor* v_new) {
  WW_ASSIGN_OR_RETURN(const KvFormat format, read_kv_format(kv.format));
  if (kv_format_is_packed(format)) {
    return Status::invalid_argument(
        fmt::format("kv.format: tokens of {} are packed by the caller (docs/kv-formats.md)", kv_format_name(format)),
        "kv.format");
  }
  for (const ww_tensor* tensor : {k_new, v_new, kv.k, kv.v}) {
    if (tensor == nullptr)
      return Status::invalid_argument("k_new, v_new, kv.k, kv.v: one of them is NULL");
    if (tensor->shape == nullptr || tensor->ndim < 3 || tensor->ndim > 4) {
      return Status::invalid_argument("k_new, v_new, kv.k, kv.v: need 3 or 4 dimensions");
    }
  }
  constexpr int64_t kMax = 1 << 20;
  const bool paged = kv.k->ndim == 4;
  const int64_t heads = k_new->shape[k_new->ndim - 2], dim = k_new->shape[k_new->ndim - 1];
  const int64_t v_dim = v_new->shape[v_new->ndim - 1];
  const int64_t page_size = paged ? kv.k->shape[kv.layout == WW_KV_HND ? 2 : 1] : 0;
  if (heads < 1 || heads > kMax || dim < 1 || dim > kMax || v_dim < 1 || v_dim > kMax ||
      page_size < (paged ? 1 : 0) || page_size > kMax) {
    return Status::invalid_argument("k_new, v_new or kv.k: a dimension is 0 or beyond 2^20");
  }
  const Place place = k_new->device.device_type == WW_DEVICE_CUDA ? Place::gpu : Place::cpu;
  return KvSpec{static_cast<int>(heads), static_cast<int>(dim), static_cast<int>(v_dim),
                static_cast<int>(page_size), format, place};
}

void append_rows(const RowsView& from, const KvPoolView& pool, const int64_t* slots, int page_size,
                 ThreadTeam& team) {
  auto append = [&](int64_t begin, int64_t end) {
    std::vector<float> values(from.dim);
    for (int64_t row = begin; row < end; ++row) {
      if (slots[row] < 0) continue;
      const int64_t page = slots[row] / page_size, offset = slots[row] % page_size;
      for (int head = 0; head < from.heads; ++head) {
        read_head(from, row, head, values.data());
        kv_encode_run(
            pool, head,
            page * pool.page_stride + offset * pool.token_stride + head * pool.head_stride,
            from.dim, values.data());
      }
    }
  };
  if (from.rows * from.heads * from.dim < kMinParallelElements) return append(0, from.rows);
  team.parallel_for(from.rows, 16, append);
}

// What the kernel reads in place.
Status check_for_gpu(const RowsView& k, const RowsView& v, const KvSpec& spec, int64_t slots) {
  constexpr int kMaxHeadDim = 512;
  if (k.dtype != v.dtype || !k.is_plain() || !v.is_plain() || spec.head_dim != spec.v_head_dim ||
      spec.head_dim > kMaxHeadDim || spec.head_dim % 2 != 0) {
    return Status::invalid_argument(
        fmt::format("k_new, v_new: on a GPU they must have one dtype, one even head dim of at most {}, dense heads and "
                    "one stride for all rows", kMaxHeadDim), "k_new");
  }
  if (slots > std::numeric_limits<int32_t>::max()) {
    return Status::unsupported("kv: on a GPU the cache must have less than 2^31 slots", "kv");
  }
  return {};
}

}  // namespace

Status append_kv(Context& context, const ww_append_args& args, const ww_kv_cache& kv) {
  WW_ASSIGN_OR_RETURN(const KvSpec spec, kv_spec_of(kv, args.k_new, args.v_new));
  const ww_tensor& k_new = *args.k_new;
  const int64_t rows = k_new.ndim == 4 ? k_new.shape[0] * k_new.shape[1] : k_new.shape[0];
  std::vector<float> scales(2 * spec.num_kv_heads);
  WW_ASSIGN_OR_RETURN(KvView view, read_kv(kv, spec, scales.data()));
  WW_ASSIGN_OR_RETURN(const RowsView k,
                      read_rows(args.k_new, {"k_new", rows, spec.num_kv_heads, spec.head_dim, spec.place}));
  WW_ASSIGN_OR_RETURN(const RowsView v,
                      read_rows(args.v_new, {"v_new", rows, spec.num_kv_heads, spec.v_head_dim, spec.place}));
  if (args.slots == nullptr && rows > 0) return Status::invalid_argument("slots: is NULL", "slots");
  const int page_size = std::max(1, spec.page_size);
  if (spec.page_size == 0) {
    view.k.page_stride = view.k.token_stride;
    view.v.page_stride = view.v.token_stride;
  }
  const int64_t end = view.extent * page_size;
  for (int64_t i = 0; i < rows; ++i) {
    if (args.slots[i] < -1 || args.slots[i] >= end) {
      return Status::invalid_argument(
          fmt::format("slots: row {} goes to slot {}, the cache has {} slots; -1 skips a row", i,
                      args.slots[i], end), "slots");
    }
  }
  if (spec.place == Place::gpu) {
    WW_RETURN_IF_ERROR(check_for_gpu(k, v, spec, end));
    return append_kv_on_gpu({k, v, view, spec, args.slots, args.stream});
  }
  append_rows(k, view.k, args.slots, page_size, context.team);
  append_rows(v, view.v, args.slots, page_size, context.team);
  return {};
}

}  // namespace warpweave::capi
