#include "capi/merge_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "attention/merge.h"
#include "capi/gpu.h"
#include "capi/tensor_args.h"

namespace warpweave::capi {
namespace {

bool is_dense(const RowsView& rows) {
  return rows.is_plain() && rows.row_stride == int64_t{rows.heads} * rows.dim;
}

}  // namespace

Status merge_states(Context& context, const ww_merge_args& args) {
  const ww_tensor* outs = args.outs;
  if (outs == nullptr || outs->ndim != 4 || outs->shape == nullptr) {
    return Status::invalid_argument("outs: must be [rows, states, heads, dim]", "outs");
  }
  constexpr int64_t kMax = 1 << 20;
  const int64_t rows = outs->shape[0], count = outs->shape[1], heads = outs->shape[2],
                dim = outs->shape[3];
  if (count < 1 || count > kMax || heads < 1 || heads > kMax || dim < 1 || dim > kMax || rows < 0 ||
      rows > (int64_t{1} << 40) / count) {
    return Status::invalid_argument(
        fmt::format("outs: [{}, {}, {}, {}] has a dimension out of bounds", rows, count, heads,
                    dim),
        "outs");
  }
  const int num_heads = static_cast<int>(heads), num_dims = static_cast<int>(dim);
  const Place place = outs->device.device_type == WW_DEVICE_CUDA ? Place::gpu : Place::cpu;
  WW_ASSIGN_OR_RETURN(const RowsView o,
                      read_rows(outs, {"outs", rows * count, num_heads, num_dims, place}));
  WW_ASSIGN_OR_RETURN(const RowsView l,
                      read_rows(args.lses_ln, {"lses_ln", rows * count, num_heads, 0, place}));
  WW_ASSIGN_OR_RETURN(const RowsView out, read_rows(args.out, {"out", rows, num_heads, num_dims, place}));
  RowsView lse = {};
  if (args.lse_ln != nullptr) {
    WW_ASSIGN_OR_RETURN(lse, read_rows(args.lse_ln, {"lse_ln", rows, num_heads, 0, place}));
  }
  if (o.dtype != DType::f32 || out.dtype != DType::f32) {
    return Status::invalid_argument(
        "outs, out: must be f32: states are merged before they are rounded", "outs");
  }
  if (l.rows_per_batch != count) {
    return Status::invalid_argument("lses_ln: must be [rows, states, heads] as outs", "lses_ln");
  }
  if (place == Place::gpu) {
    if (!is_dense(o) || !is_dense(out) || !is_dense(l) || (lse.data != nullptr && !is_dense(lse))) {
      return Status::invalid_argument("outs, lses_ln, out, lse_ln: on a GPU they must be dense", "outs");
    }
    return merge_states_on_gpu({floats_at(o, 0, 0), floats_at(l, 0, 0), floats_at(out, 0, 0),
                                lse.data != nullptr ? floats_at(lse, 0, 0) : nullptr, rows,
                                static_cast<int>(count), num_heads, num_dims, args.stream});
  }
  context.team.parallel_for(
      rows, std::max<int64_t>(1, 4096 / (count * heads)), [&](int64_t begin, int64_t end) {
        std::vector<PartialAttention> parts(count);
        for (int64_t row = begin; row < end; ++row) {
          for (int head = 0; head < num_heads; ++head) {
            for (int64_t s = 0; s < count; ++s) {
              parts[s] = {floats_at(o, row * count + s, head), num_dims,
                          floats_at(l, row * count + s, head)};
            }
            merge_attention({1, 1, num_dims}, parts,
                            {floats_at(out, row, head), num_dims,
                             lse.data != nullptr ? floats_at(lse, row, head) : nullptr});
          }
        }
      });
  return {};
}

}  // namespace warpweave::capi
