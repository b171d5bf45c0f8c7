// What the kernels for few rows share: small_gemm.cu and small_gemm_fp8.cu.
#pragma once

namespace warpweave::gpu {

constexpr int kUnitRows = 16;  // of weights, on the M side of one mma

// A warp's sums of C::kUnits units and C::kTokenTiles tiles of 8 input rows, as mma.m16n8k16 leaves them in
// registers, to its part of `partial`, [warps][C::kRows][C::kPartialStride], where the CTA adds them up.
template <class C>
__device__ void share(const float (&sum)[C::kUnits][C::kTokenTiles][4], float* partial) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int u = 0; u < C::kUnits; ++u) {
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = u * kUnitRows + lane / 4 + i / 2 * 8, token = t * 8 + lane % 4 * 2 + i % 2;
        partial[(warp * C::kRows + row) * C::kPartialStride + token] = sum[u][t][i];
      }
    }
  }
}

}  // namespace warpweave::gpu
