// y = x * W^T on the GPU for many rows, where the tensor cores take the time (sm_90): bf16 or f16, y of the same type
// or f32, f32 added to what is there, or the activation of gates and ups.
//
// Every element is one sum over the whole depth, in one order: it has the same bits whichever tile holds it.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/cuda/gpu_ops.h"

namespace warpweave::gpu {

struct GemmCall;

// What the two CTAs of a cluster share, so that each reads half of it for both: their tiles lie below each other
// (weights) or side by side (inputs).
enum class WideShare : uint8_t { weights, inputs };

struct WidePlan {
  int tile_columns = 176;  // weight rows of a tile of 128 rows of y; under a GLU gates and ups
  WideShare share = WideShare::weights;
  bool operator==(const WidePlan&) const = default;
};

// Whether wide_gemm can compute this call; a GLU may be fused.
bool wide_gemm_takes(const GemmCall& call);

// Whether it should: many rows that keep all SMs busy to the end, nothing added to (there cuBLASLt is as fast in a layer).
bool wide_gemm_pays(const GemmCall& call);

// The tiles that keep all SMs busy to the end.
WidePlan wide_plan(const GemmCall& call);

// Every plan there is for this call.
std::vector<WidePlan> all_wide_plans(const GemmCall& call);

void wide_gemm(const GemmCall& call, const WidePlan& plan, Stream stream);

}  // namespace warpweave::gpu
