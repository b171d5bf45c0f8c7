// Products of 17 to 128 rows (decode of larger batches), whose time is that of reading the weights once.
//
// Deterministic: the work is cut into equal parts by shape and number of SMs alone, and what several CTAs
// computed of one tile is added in their order.
#pragma once

#include <cstddef>

#include "ops/cuda/gpu_ops.h"

namespace warpweave::gpu {

struct GemmCall;

inline constexpr int kStreamGemmRows = 128;
// 128 or 256 weight rows a tile: smaller tiles share the work more evenly, larger ones read the inputs less often.
inline constexpr int kStreamGemmVariants = 2;

// What CTAs hand to each other, in GPU memory: `partials`, and behind it the flags, which are zero between launches.
struct StreamGemmScratch {
  void* memory = nullptr;
  static size_t partials_bytes();
  static size_t flags_bytes();
};

// sm_90, rows <= kStreamGemmRows, 16-bit dtypes, in_features a multiple of 8, out_features of 16 (and no bias with
// fused_glu), rows of y a multiple of 4 elements apart. Up to 64 rows have both variants, more rows variant 1 only.
bool stream_gemm_takes(const GemmCall& call, int variant);
// The bias is the caller's to add. Launch errors stay with the runtime.
void stream_gemm(const GemmCall& call, int variant, const StreamGemmScratch& scratch, Stream stream);

}  // namespace warpweave::gpu
