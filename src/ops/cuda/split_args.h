// What stream_gemm and tile_gemm pass to their kernels of a call, alike: y, or partial sums in its place.
#pragma once

#include "ops/cuda/gemm.h"

namespace warpweave::gpu {

// `depth`: columns of a chunk. `partials` null: y, by one split.
template <class Args>
Args args_of(const GemmCall& call, int depth, int splits, float* partials) {
  const GpuLinear& linear = *call.linear;
  Args args{};
  args.rows = static_cast<int>(call.rows);
  args.columns = static_cast<int>(call.fused_glu ? linear.out_features / 2 : linear.out_features);
  args.chunks = static_cast<int>((linear.in_features + depth - 1) / depth);
  args.y = call.y;
  args.y_stride = call.y_stride;
  args.f32_out = call.y_dtype == DType::f32;
  args.splits = 1;
  if (partials != nullptr) {
    args.y = partials;
    args.y_stride = linear.out_features;
    args.split_stride = call.rows * linear.out_features;
    args.f32_out = true;
    args.splits = splits;
  }
  args.glu = call.fused_glu ? linear.glu : GluActivation::none;
  return args;
}

}  // namespace warpweave::gpu
