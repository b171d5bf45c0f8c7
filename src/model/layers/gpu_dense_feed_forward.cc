#include "model/layers/gpu_dense_feed_forward.h"

#include "model/layers/gpu_residual.h"
#include "ops/cuda/norms.h"

namespace warpweave {

void GpuGluWorkspace::reserve(DType dtype, int64_t tokens, int64_t cols, GpuWorkspace& workspace) {
  const size_t element = dtype_info(dtype).block_bytes;
  workspace.get(gate_up, 2 * tokens * cols, element);
  workspace.get(act, tokens * cols, element);
}

Status run_glu(const GpuGluCall& call, const GpuGluWorkspace& workspace, GpuResidual& x) {
  const int64_t cols = call.gate_up.out_features / 2;
  gpu::GemmCall fused = {.linear = &call.gate_up, .x = call.input, .rows = x.rows(), .y = workspace.act,
                         .y_dtype = x.dtype(), .y_stride = cols, .fused_glu = true};
  const auto run = [&](const gpu::GemmCall& gemm) {
    return call.norm != nullptr ? x.run_normed(*call.norm, gemm, call.place) : x.gemm().run(gemm, x.stream());
  };
  const bool adapters_join = !x.adapting() || !call.place || x.joins_adapters(fused, *call.place);
  if (adapters_join && x.gemm().takes_fused(fused)) return run(fused);
  WW_RETURN_IF_ERROR(run({.linear = &call.gate_up, .x = call.input, .rows = x.gemm_rows(), .y = workspace.gate_up,
                          .y_dtype = x.dtype(), .y_stride = 2 * cols}));
  gpu::glu({.activation = call.gate_up.glu, .in = workspace.gate_up, .dtype = x.dtype(), .rows = x.rows(), .cols = cols,
            .out = workspace.act, .prefetch = call.next != nullptr ? x.ahead(*call.next) : gpu::WeightPrefetch{}},
           x.stream());
  return {};
}

Status GpuDenseFeedForward::run_ungated(int layer, GpuResidual& x) const {
  const int64_t cols = weights_.gate_up.out_features;
  WW_RETURN_IF_ERROR(x.run_normed(
      weights_.norms.in,
      {.linear = &weights_.gate_up, .rows = x.gemm_rows(), .y = w_.act, .y_dtype = x.dtype(), .y_stride = cols},
      LoraPlace{layer, LoraSite::gate_up}));
  gpu::activate({.activation = activation_, .x = w_.act, .dtype = x.dtype(), .count = x.rows() * cols}, x.stream());
  return {};
}

Status GpuDenseFeedForward::forward(const GpuLayerCall& call) {
  if (!weights_.gated) {
    WW_RETURN_IF_ERROR(run_ungated(call.layer, call.x));
  } else {
    WW_RETURN_IF_ERROR(run_glu({.gate_up = weights_.gate_up, .norm = &weights_.norms.in, .next = &weights_.down,
                                .place = LoraPlace{call.layer, LoraSite::gate_up}}, w_, call.x));
  }
  return call.x.add(weights_.down, w_.act, weights_.norms.out, LoraPlace{call.layer, LoraSite::down});
}

}  // namespace warpweave
