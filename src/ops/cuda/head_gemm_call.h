// How a call of head_gemm (latent.h) becomes the mma.sync kernel's: for those who launch it, alone or with other work.
#pragma once

#include "ops/cuda/head_gemm.cuh"
#include "ops/cuda/latent.h"

namespace warpweave::gpu {

bool head_gemm_by_mma(const HeadGemmCall& call);
HeadGemmArgs head_gemm_args(const HeadGemmCall& call);

// Of a head, where a block has 16 * row_blocks rows.
inline int head_gemm_blocks(const HeadGemmArgs& args, int row_blocks) {
  return (args.rows + 16 * row_blocks - 1) / (16 * row_blocks) * (args.out_dim / kHeadCols);
}
// Calls run(std::integral_constant) with the blocks of 16 rows that a CTA has: few where there are few CTAs, since each
// waits for memory.
template <typename Run>
void with_head_row_blocks(const HeadGemmCall& call, const Run& run) {
  constexpr int64_t kEnoughCtas = 512, kFewRows = 64;
  const int64_t ctas = int64_t{call.num_heads} * (call.out_dim / kHeadCols);
  if (call.rows <= 16 || (call.rows <= kFewRows && ctas * 2 < kEnoughCtas)) return run(std::integral_constant<int, 1>());
  if (call.rows <= 32 || (call.rows <= kFewRows && ctas < kEnoughCtas)) return run(std::integral_constant<int, 2>());
  run(std::integral_constant<int, 4>());
}

}  // namespace warpweave::gpu
