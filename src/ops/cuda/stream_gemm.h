// y = x * W^T on the GPU for 17 to 64 rows, of weights in e4m3 without a GLU to 128, where the weights' bytes take the
// time (sm_90).
//
// A GEMM either writes y, where one CTA has all of the depth, or leaves `splits` partial sums in f32, [splits][rows]
// [out_features], which the kernel that reads y adds up: RmsNormCall::partials, QkvRowsCall::partials. So a CTA's work
// ends with stores that nobody in the kernel waits for, and the sums have one order.
#pragma once

#include "ops/cuda/gpu_ops.h"

namespace warpweave::gpu {

struct GemmCall;

inline constexpr int kStreamGemmRows = 64;
inline constexpr int kStreamGemmCodeRows = 128;  // of weights in e4m3, without a GLU

// How a GEMM is cut.
struct StreamPlan {
  int tile = 128;      // weight rows of a CTA: 128 or 192 (128 with scales of blocks); with a GLU 224, gates and ups
  int splits = 1;      // CTAs that share a tile's depth, up to kMostPartials; with a GLU 1
  int together = 1;    // stages asked for at once, whose bytes of a row are neighbours: memory answers 256 or 512
                       // bytes of a row faster than 128 bytes now and then
  int in_flight = 4;   // stages of weights asked for that have not arrived, at most: all that others ask for, the
                       // inputs and the small kernels before, queues behind them
  bool operator==(const StreamPlan&) const = default;
};

// Whether this GPU has WGMMA and TMA as the kernel uses them, and a driver that describes matrices to it;
// tile_gemm and wide_gemm need the same.
bool has_wgmma();

// Whether stream_gemm computes this call; a GLU of up to kStreamGemmRows may be fused, adapters may join where weights have 16 bits. Of weights in
// e4m3 it wants inputs rounded to e4m3, with x_scales; with scales of blocks it fuses no GLU.
bool stream_gemm_takes(const GemmCall& call);

// Of weights in e4m3: whether y itself comes faster this way than by cuBLASLt, as that of a head does.
bool stream_gemm_pays_whole(const GemmCall& call);

StreamPlan stream_plan(const GemmCall& call);

// `partials` null: y, by one split.
void stream_gemm(const GemmCall& call, const StreamPlan& plan, float* partials, Stream stream);

}  // namespace warpweave::gpu
