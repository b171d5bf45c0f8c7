// Sums of 8-bit operands of experts: those of a stage, 128 elements deep, are brought to f32, scaled by their block of weights;
// scales of weight rows and of rows of x follow once, at the end.
#pragma once

#include "device/cuda/wgmma_fp8.h"
#include "ops/cuda/expert_gemm.cuh"
#include "ops/cuda/fp8.h"

namespace warpweave::gpu {

// Of x, for the places of a tile that a thread has sums of.
template <int kPlaces>
struct ExpertPlaceScales {
  float of[kPlaces / 4];

  // `x_scales`: of the tile's first place.
  __device__ __forceinline__ void read(const float* x_scales, int places) {
#pragma unroll
    for (int i = 0; i < kPlaces / 4; ++i) {
      const int place = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
      of[i] = place < places ? __ldcg(x_scales + place) : 0.0f;
    }
  }
};

// Rows beyond the last are not written later: their scales are any.
template <class C>
struct ExpertFp8Scales {
  const float* of_weights[2];   // of the expert, at the thread's two rows
  bool by_block;

  __device__ ExpertFp8Scales(const ExpertGemmArgs& a, int expert, int first_row) : by_block(a.scale_stride > 0) {
    const float* const scales = a.scales[expert];
#pragma unroll
    for (int i = 0; i < 2; ++i) of_weights[i] = scales + at(a, first_row, i);
  }
  // Of the thread's i-th row, among those of the expert.
  static __device__ __forceinline__ int64_t at(const ExpertGemmArgs& a, int first_row, int i) {
    const int row = min(expert_row(first_row) + 8 * i, a.rows - 1);
    int of_row = row;  // among gate's rows, then up's
    if constexpr (C::kGlu != Glu::none) of_row = row / 16 * 8 + row % 8 + row / 8 % 2 * (a.rows / 2);
    return a.scale_stride > 0 ? int64_t{of_row / int{kFp8Block}} * a.scale_stride : of_row;
  }
  // Those of a tile to come, `scales` its expert's, on their way to the L2 cache.
  static __device__ __forceinline__ void prefetch(const ExpertGemmArgs& a, const float* scales, int first_row) {
#pragma unroll
    for (int i = 0; i < 2; ++i) ptx::prefetch_l2(scales + at(a, first_row, i));
  }
  __device__ __forceinline__ float of_chunk(int i, int chunk) const { return by_block ? __ldg(of_weights[i] + chunk) : 1.0f; }

  template <int kSums>
  static __device__ __forceinline__ void add(float first, float second, const float (&part)[kSums], float (&sum)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum[i] += part[i] * (i % 4 < 2 ? first : second);
  }
  template <int kPlaces>
  __device__ __forceinline__ void finish(const ExpertPlaceScales<kPlaces>& places, float (&sum)[kPlaces / 2]) const {
    const float first = by_block ? 1.0f : __ldg(of_weights[0]), second = by_block ? 1.0f : __ldg(of_weights[1]);
#pragma unroll
    for (int i = 0; i < kPlaces / 4; ++i) {
      sum[i / 2 * 4 + i % 2] *= first * places.of[i];
      sum[i / 2 * 4 + 2 + i % 2] *= second * places.of[i];
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
