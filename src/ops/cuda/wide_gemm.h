// y = x * W^T on the GPU for many rows, where the tensor cores take the time (sm_90): bf16 or f16, y of the same type
// or f32, f32 added to what is there, or the activation of gates and ups.
//
// Every element is one sum over the whole depth, in one order: equal calls give equal bits. Which tiles a product is
// cut into is chosen so that all SMs finish together.
#pragma once

#include "ops/cuda/gpu_ops.h"

namespace warpweave::gpu {

struct GemmCall;

// What the two CTAs of a cluster share, so that each reads half of it for both.
enum class WideShare : uint8_t { nothing, weights, inputs };

struct WidePlan {
  int tile_rows = 128;     // of y: 128 or 256
  int tile_columns = 256;  // weight rows: gates and ups under a GLU
  WideShare share = WideShare::weights;
  int group = 16;          // tiles below each other that run at about the same time
  bool operator==(const WidePlan&) const = default;
};

// Whether wide_gemm computes this call; a GLU may be fused.
bool wide_gemm_takes(const GemmCall& call);

// Whether there is a kernel of this tile.
bool wide_gemm_has(const GemmCall& call, const WidePlan& plan);

WidePlan wide_plan(const GemmCall& call);

void wide_gemm(const GemmCall& call, const WidePlan& plan, Stream stream);

}  // namespace warpweave::gpu
