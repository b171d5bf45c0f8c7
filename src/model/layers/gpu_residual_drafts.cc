// What draft heads and their targets ask of the residual stream.
#include "device/cuda/copy.h"
#include "model/layers/gpu_residual.h"
#include "ops/cuda/norms.h"

namespace warpweave {

Status GpuResidual::run_normed_beside(const GpuRowNorm& norm, gpu::GemmCall call, std::optional<LoraPlace> place) {
  if (beside_ == nullptr) return run_normed(norm, call, place);
  normed(norm, {});
  const size_t row_bytes = hidden_size_ * dtype_info(dtype_).block_bytes;
  WW_RETURN_IF_ERROR(copy_rows_async({static_cast<std::byte*>(beside_) + row_bytes, 2 * row_bytes, h_, row_bytes,
                                      row_bytes, static_cast<size_t>(rows_)},
                                     stream_, "rows beside embeddings"));
  call.x = beside_;
  return run_adapted(call, place);
}

void GpuResidual::keep_rows_of_layer(void* out, int64_t out_stride, float scale) {
  settle_experts();
  gpu::keep_layer({.x = x_[current_],
                   .partials = pending_,
                   .rows = rows_,
                   .cols = hidden_size_,
                   .scale = scale,
                   .out = out,
                   .out_dtype = dtype_,
                   .out_stride = out_stride},
                  stream_);
}

}  // namespace warpweave
