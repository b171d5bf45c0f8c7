// What stream_gemm and tile_gemm share on the host: into how many tiles and splits of the depth a GEMM is cut, and what
// their kernels get of a call: y, or partial sums in its place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

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

// Weight rows of a tile, and the CTAs that share its depth.
struct TileSplit {
  int tile = 0;
  int splits = 1;
};

// The cheapest of `tiles` and of the splits on `sms` SMs, by the rows of weights and of inputs that a CTA reads; inputs
// come from the L2 and count half. `depth`: columns of a chunk; `input_rows`: of the tile of inputs.
inline TileSplit cheapest_split(const GpuLinear& linear, std::span<const int> tiles, int depth, int input_rows,
                                int sms) {
  // What a split costs the kernel that adds up, in the same unit, from times of Llama-3.1-8B's GEMMs.
  constexpr int64_t kSplitCost = 900;
  const int64_t chunks = (linear.in_features + depth - 1) / depth;
  TileSplit best;
  int64_t best_cost = INT64_MAX;
  for (const int tile : tiles) {
    const int64_t columns = (linear.out_features + tile - 1) / tile;
    for (int splits = 1; splits <= kMostPartials; ++splits) {
      const int64_t waves = (columns * splits + sms - 1) / sms;
      const int64_t cost = waves * ((chunks + splits - 1) / splits) * (tile + input_rows / 2) + kSplitCost * splits;
      if (cost >= best_cost) continue;
      best_cost = cost;
      best = {tile, splits};
    }
  }
  return best;
}

}  // namespace warpweave::gpu
