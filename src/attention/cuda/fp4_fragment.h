// Stored fp4 (KvFormat::fp4_e2m1) as operands of mma.sync in half precision, whichever 16-bit type the
// model has: a half's upper byte holds all of an fp4 value, so that eight values cost eleven instructions and a
// block's scale one more a pair. Values come out times 2^-14 (e2m1's exponent in the half's); an fp4 value times
// its block's e4m3 scale has at most six significant bits and is no less than 2^-24, so the product is exact.
// Q is brought into the half's range by a power of two of its own for every row (DecodeState).
#pragma once

#include "device/cuda/ptx.h"

namespace warpweave::cuda {

// Shifts as multiplications by numbers that the compiler does not know: the pipe of logic and shifts is the busy one.
static __constant__ ptx::u32 kShiftBy[3] = {1u << 1, 1u << 4, 1u << 8};

struct Fp4Halves {
  static constexpr int kBits = 4;
  static constexpr int kWidenedScaleLog2 = 14;  // stored value = widened value * 2^this
  static constexpr int kProbabilityLog2 = 7;    // keeps small probabilities normal; times 448 it still fits
  static constexpr int kQueryLog2 = 0;
  static constexpr int kQueryTopLog2 = 14;      // the exponent that a row's greatest element gets

  // pairs[j]: nibbles j and j + 4 of a word.
  static WW_DEVICE void widen(ptx::u32 x, ptx::u32 (&pairs)[4]) {
    // A byte each, nibbles 0, 2, 4, 6, then 1, 3, 5, 7: the sign of one shift and the rest of another. What else
    // stands there goes with the neighbouring byte.
    constexpr ptx::u32 kSigns = 0x80808080u, kFields = 0x8e008e00u;
    const ptx::u32 even = ptx::select_bits(x * kShiftBy[1], x * kShiftBy[0], kSigns);
    const ptx::u32 odd = ptx::select_bits(x, x >> 3, kSigns);
    pairs[0] = (even * kShiftBy[2]) & kFields;
    pairs[1] = (odd * kShiftBy[2]) & kFields;
    pairs[2] = even & kFields;
    pairs[3] = odd & kFields;
  }
};

// Two e4m3 codes, in the lower or upper half of a word, as a pair of halves.
template <bool kUpper>
WW_DEVICE ptx::u32 halves_of_e4m3(ptx::u32 codes) {
#if __CUDA_ARCH__ >= 890
  ptx::u32 pair;
  if constexpr (kUpper) {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h;}\n" : "=r"(pair) : "r"(codes));
  } else {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l;}\n" : "=r"(pair) : "r"(codes));
  }
  return pair;
#else
  const ptx::u32 upper_bytes = __byte_perm(codes, 0, kUpper ? 0x3424 : 0x1404);
  return ptx::F16::multiply((upper_bytes & 0x80008000u) | (upper_bytes >> 1 & 0x3f803f80u), 0x5c005c00u);  // 2^8
#endif
}

}  // namespace warpweave::cuda
