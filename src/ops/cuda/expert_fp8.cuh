// Sums of 8-bit operands of experts: those of a stage, 128 elements deep, are brought to f32, scaled by their block of weights;
// scales of weight rows and of rows of x follow once, at the end.
#pragma once

#include "device/cuda/wgmma_fp8.h"
#include "ops/cuda/expert_gemm.cuh"
#include "ops/cuda/fp8.h"

namespace warpweave::gpu {

// Rows beyond the last are not written later: their scales are any.
template <class C>
struct ExpertFp8Scales {
  const float* of_weights[2];   // of the expert, at the thread's two rows
  bool by_block;

  __device__ ExpertFp8Scales(const ExpertGemmArgs& a, int expert, int first_row) : by_block(a.scale_stride > 0) {
    const float* const scales = a.scales[expert];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(expert_row(first_row) + 8 * i, a.rows - 1);
      int at = row;  // among gate's rows, then up's
      if constexpr (C::kGlu != Glu::none) at = row / 16 * 8 + row % 8 + row / 8 % 2 * (a.rows / 2);
      of_weights[i] = scales + (by_block ? int64_t{at / int{kFp8Block}} * a.scale_stride : at);
    }
  }
  __device__ __forceinline__ float of_chunk(int i, int chunk) const { return by_block ? __ldg(of_weights[i] + chunk) : 1.0f; }

  template <int kSums>
  static __device__ __forceinline__ void add(float first, float second, const float (&part)[kSums], float (&sum)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum[i] += part[i] * (i % 4 < 2 ? first : second);
  }
  // `x_scales`: of the tile's first place.
  template <int kSums>
  __device__ __forceinline__ void finish(const float* x_scales, int places, float (&sum)[kSums]) const {
    const float first = by_block ? 1.0f : __ldg(of_weights[0]), second = by_block ? 1.0f : __ldg(of_weights[1]);
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int place = j * 8 + threadIdx.x % 4 * 2 + i;
        const float of_place = place < places ? __ldcg(x_scales + place) : 0.0f;
        sum[4 * j + i] *= first * of_place;
        sum[4 * j + 2 + i] *= second * of_place;
      }
    }
  }
};

// The sums of a stage alone. Weight rows and places are in stages as expert_gemm.cu has them.
template <int kPlaces>
__device__ __forceinline__ void multiply_codes(u32 weights, u32 places, float (&part)[kPlaces / 2]) {
  const u32 w = ptx::wgmma_descriptor(weights, 0), x = ptx::wgmma_descriptor(places, 0);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kExpertRowBytes / 32; ++k) {
    ptx::WgmmaE4m3<kPlaces>::template ss<kExpertRowBytes>(part, ptx::wgmma_advance(w, k * 32), ptx::wgmma_advance(x, k * 32), k > 0);
  }
  ptx::wgmma_commit();
}

}  // namespace warpweave::gpu
