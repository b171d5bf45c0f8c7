// Lane arithmetic over the compiler's vector types: one text for every tier. Include in a kernel file
// after defining WW_LANES (4, 8 or 16); everything is in an unnamed namespace, so each tier keeps its
// own copy. Compile with -ffp-contract=fast where the tier has fused multiply-add.
#pragma once

#include <stdint.h>
#include <string.h>

namespace warpweave {
namespace {

constexpr int kLanes = WW_LANES;
typedef float Floats __attribute__((vector_size(4 * WW_LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * WW_LANES)));
typedef uint32_t Units __attribute__((vector_size(4 * WW_LANES)));
typedef float LooseFloats __attribute__((vector_size(4 * WW_LANES), aligned(4), may_alias));
typedef int32_t LooseInts __attribute__((vector_size(4 * WW_LANES), aligned(4), may_alias));

constexpr float kNegativeInfinity = -__builtin_huge_valf();

inline Floats load(const void* p) { return *static_cast<const LooseFloats*>(p); }
inline void store(void* p, Floats v) { *static_cast<LooseFloats*>(p) = v; }
inline Ints load_ints(const void* p) { return *static_cast<const LooseInts*>(p); }
inline void store_ints(void* p, Ints v) { *static_cast<LooseInts*>(p) = v; }
inline Floats spread(float x) { return Floats{} + x; }
inline Ints spread_int(int32_t x) { return Ints{} + x; }
inline Floats pick(Ints mask, Floats yes, Floats no) { return mask ? yes : no; }
inline Ints pick_ints(Ints mask, Ints yes, Ints no) { return mask ? yes : no; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline Floats magnitude(Floats a) { return (Floats)((Ints)a & 0x7fffffff); }

// a0 b0 a1 b1 ... of the lower or the upper halves.
inline Units interleave_low(Units a, Units b) {
#if WW_LANES == 16
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif WW_LANES == 8
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}
inline Units interleave_high(Units a, Units b) {
#if WW_LANES == 16
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27,
                                 12, 28, 13, 29, 14, 30, 15, 31);
#elif WW_LANES == 8
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

inline float sum_lanes(Floats v) {
  float lanes[kLanes];
  memcpy(lanes, &v, sizeof v);
  for (int step = kLanes / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  }
  return lanes[0];
}
inline float largest_lane(Floats v) {
  float lanes[kLanes];
  memcpy(lanes, &v, sizeof v);
  for (int step = kLanes / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lanes[i] = lanes[i] > lanes[i + step] ? lanes[i] : lanes[i + step];
  }
  return lanes[0];
}

// 2^n * poly(r) with x = n ln 2 + r; exactly 0 below the normal numbers, infinite above them.
// Adding 1.5 * 2^23 leaves the rounded n in the low bits.
inline Floats exp_lanes(Floats x) {
  const Ints below = x < -87.33f;
  Floats y = x > 88.9f ? spread(88.9f) : x;
  y = below ? spread(-87.33f) : y;
  const Floats shifted = y * 1.44269504f + 12582912.0f;
  const Floats n = shifted - 12582912.0f;
  Floats r = y - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Floats p = r * (1.0f / 720) + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // In two halves, so that 2^128 does not overflow before the product does.
  const Ints whole = (Ints)shifted - 0x4b400000;
  const Ints half = whole >> 1;
  const Floats result = p * (Floats)((half + 127) << 23) * (Floats)((whole - half + 127) << 23);
  return below ? spread(0.0f) : result;
}

// Near 0 an odd polynomial, else 1 - 2 / (exp(2|x|) + 1): both keep the relative error small.
inline Floats tanh_lanes(Floats x) {
  const Floats a = magnitude(x);
  const Floats z = x * x;
  Floats poly = z * -5.70498872745e-3f + 2.06390887954e-2f;
  poly = poly * z - 5.37397155531e-2f;
  poly = poly * z + 1.33314422036e-1f;
  poly = poly * z - 3.33332819422e-1f;
  const Floats small = poly * z * x + x;
  const Floats bounded = a > 20.0f ? spread(20.0f) : a;  // keeps NaN
  Floats large = 1.0f - 2.0f / (exp_lanes(bounded + bounded) + 1.0f);
  large = x < 0.0f ? -large : large;
  return a < 0.625f ? small : large;
}

}  // namespace
}  // namespace warpweave
