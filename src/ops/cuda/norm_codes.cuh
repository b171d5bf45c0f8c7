// Normed rows that leave in e4m3 with a scale for each block of columns (norm_codes.h).
#pragma once

#include "ops/cuda/fp8_codes.cuh"
#include "ops/cuda/norm_codes.h"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {

// By a warp whose lanes have neighbouring fours of a block's columns, this one those at `column`. Values are rounded to T first,
// as the norm would leave them.
template <typename T>
__device__ __forceinline__ void code_block(const NormExpertsCodesCall& call, int64_t row, int column, const float (&value)[4]) {
  static_assert(kFp8Block == 4 * 32);
  float kept[4], largest = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    kept[j] = to_f32(from_f32<T>(value[j]));
    largest = fmaxf(largest, fabsf(kept[j]));
  }
  const CodeScale scale(warp_max(largest));
  if (threadIdx.x % 32 == 0) call.to.scales[column / int{kFp8Block} * call.scale_stride + row] = scale.scale;
  const uint16_t low = codes_of(kept[0], kept[1], scale.inverse), high = codes_of(kept[2], kept[3], scale.inverse);
  *reinterpret_cast<uint32_t*>(call.to.codes + row * call.norm.cols + column) = low | uint32_t{high} << 16;
}

}  // namespace warpweave::gpu
