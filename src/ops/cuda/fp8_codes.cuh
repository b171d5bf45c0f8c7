// Rounding a row to e4m3, in device code: its scale, and codes by twos.
#pragma once

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace warpweave::gpu {

struct CodeScale {
  float scale, inverse;
  // Of values up to `amax`. Rows of zeros get the smallest: 448 over it is finite.
  __device__ explicit CodeScale(float amax) {
    constexpr float kLargest = 448.0f, kSmallestAmax = 0x1p-100f;
    amax = fmaxf(amax, kSmallestAmax);
    scale = amax / kLargest;
    inverse = kLargest / amax;
  }
};

__device__ __forceinline__ uint16_t codes_of(float low, float high, float inverse) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low * inverse, high * inverse), __NV_SATFINITE, __NV_E4M3);
}

}  // namespace warpweave::gpu
