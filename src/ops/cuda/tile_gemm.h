// y = x * W^T on the GPU for 65 to 128 rows, where the weights' bytes take most of the time (sm_90).
//
// Like stream_gemm a GEMM writes y, where one CTA has all of the depth, or leaves `splits` partial sums in
// f32, [splits][rows][out_features], which the kernel that reads y adds up: RmsNormCall::partials, QkvRowsCall::partials.
#pragma once

#include "ops/cuda/gpu_ops.h"

namespace warpweave::gpu {

struct GemmCall;

inline constexpr int kTileGemmRows = 128;

// How a GEMM is cut.
struct TilePlan {
  int tile = 192;      // weight rows of a CTA: 96, 128, 192 or 256; with a GLU 224, gates and ups
  int splits = 1;      // parts of the depth, up to kMostPartials; with a GLU 1
  int together = 2;    // stages of weights asked for at once, whose bytes of a row are neighbours
  int in_flight = 4;   // stages of weights asked for that have not arrived, at most
  bool operator==(const TilePlan&) const = default;
};

// Whether tile_gemm computes this call; a GLU may be fused.
bool tile_gemm_takes(const GemmCall& call);

// Whether it is faster so than by cuBLASLt, from times of Llama-3.1-8B's GEMMs.
bool tile_gemm_pays(const GemmCall& call);

TilePlan tile_plan(const GemmCall& call);

// `partials` null: y, by one split.
void tile_gemm(const GemmCall& call, const TilePlan& plan, float* partials, Stream stream);

}  // namespace warpweave::gpu
