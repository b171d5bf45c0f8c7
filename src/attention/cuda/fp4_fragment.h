// Stored fp4 (KvFormat::fp4_e2m1) as operands of mma.sync in half precision, whichever 16-bit type the
// model has: a half's upper byte holds all of an fp4 value, so that eight values cost eleven instructions and a
// block's scale one more a pair. Values come out times 2^-14 (e2m1's exponent in the half's); an fp4 value times
// its block's e4m3 scale has at most six significant bits and is no less than 2^-24, so the product is exact.
// Q is brought into the half's range by a power of two of its own for every row (DecodeState).
#pragma once

#include "attention/cuda/kv_fragment.h"
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

}  // namespace warpweave::cuda
