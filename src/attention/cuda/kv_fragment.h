// How stored K and V become operands of mma.sync. fp8 is widened by moving bits: an 8-bit code
// placed into the 16-bit format's sign, exponent and mantissa is the value times a power of two,
// which the caller folds into the softmax scale and the output (kWidenedScaleLog2). The tensor cores
// take the subnormals this makes as they are.
//
// `widen_low` gives bytes 0 and 2 of a word, `widen_high` bytes 1 and 3, as a pair of 16-bit values.
//
// fp4 goes the same way (in the extend kernel; decode has fp4_fragment.h), then is multiplied by its block's
// scale: an fp4 value times an e4m3 one has at most six significant bits, so the 16-bit product is exact.
// `widen<j>` gives nibbles j and j + 4 of a word.
#pragma once

#include "attention/cuda/element_type.h"
#include "device/cuda/ptx.h"

namespace warpweave::cuda {

using ptx::u32;

template <class Element, KvStorage kStorage>
struct KvFragment;

template <class Element>
struct KvFragment<Element, KvStorage::same16> {
  static constexpr int kBits = 16;
  static constexpr int kWidenedScaleLog2 = 0;  // stored value = widened value * 2^this
  static constexpr int kProbabilityLog2 = 0;   // P is scaled by 2^this before the MMA with V
  static constexpr int kQueryLog2 = 0;         // and Q by 2^this
};

template <>
struct KvFragment<ptx::Bf16, KvStorage::e4m3> {
  static constexpr int kBits = 8;
  static constexpr int kWidenedScaleLog2 = 120;
  // Without these shifts results of the MMA would fall below the smallest normal float32.
  static constexpr int kProbabilityLog2 = 100;
  static constexpr int kQueryLog2 = 100;
  static WW_DEVICE u32 widen_high(u32 x) { return (x & 0x80008000u) | ((x >> 4) & 0x07f007f0u); }
  static WW_DEVICE u32 widen_low(u32 x) { return ((x << 8) & 0x80008000u) | ((x << 4) & 0x07f007f0u); }
};

template <>
struct KvFragment<ptx::Bf16, KvStorage::e5m2> {
  static constexpr int kBits = 8;
  static constexpr int kWidenedScaleLog2 = 112;
  static constexpr int kProbabilityLog2 = 92;
  static constexpr int kQueryLog2 = 92;
  static WW_DEVICE u32 widen_high(u32 x) { return (x & 0x80008000u) | ((x >> 3) & 0x0fe00fe0u); }
  static WW_DEVICE u32 widen_low(u32 x) { return ((x << 8) & 0x80008000u) | ((x << 5) & 0x0fe00fe0u); }
};

template <>
struct KvFragment<ptx::F16, KvStorage::e4m3> {
  static constexpr int kBits = 8;
  static constexpr int kWidenedScaleLog2 = 8;
  static constexpr int kProbabilityLog2 = 0;
  static constexpr int kQueryLog2 = 0;
  static WW_DEVICE u32 widen_high(u32 x) { return (x & 0x80008000u) | ((x >> 1) & 0x3f803f80u); }
  static WW_DEVICE u32 widen_low(u32 x) { return ((x << 8) & 0x80008000u) | ((x << 7) & 0x3f803f80u); }
};

template <>
struct KvFragment<ptx::F16, KvStorage::e5m2> {
  static constexpr int kBits = 8;
  static constexpr int kWidenedScaleLog2 = 0;
  static constexpr int kProbabilityLog2 = 0;
  static constexpr int kQueryLog2 = 0;
  static WW_DEVICE u32 widen_high(u32 x) { return x & 0xff00ff00u; }
  static WW_DEVICE u32 widen_low(u32 x) { return (x << 8) & 0xff00ff00u; }
};

template <>
struct KvFragment<ptx::Bf16, KvStorage::e2m1> {
  static constexpr int kBits = 4;
  static constexpr int kWidenedScaleLog2 = 119;  // 126 of the value, 120 of the scale, less 127
  static constexpr int kProbabilityLog2 = 100;
  static constexpr int kQueryLog2 = 100;
  static constexpr int kScaleShift = 4;          // of an e4m3 code from a half's upper byte
  static constexpr u32 kScaleMask = 0x07f007f0u;
  static constexpr u32 kScaleFactor = 0x7f007f00u;  // 2^127

  template <int kNibble>
  static WW_DEVICE u32 widen(u32 x) {
    // A multiplication moves an isolated nibble to the sign and to exponent and mantissa at once.
    if constexpr (kNibble == 0) return ((x & 0x000f000fu) * 0x1040u) & 0x81c081c0u;
    if constexpr (kNibble == 1) return ((x & 0x00f000f0u) * 0x0104u) & 0x81c081c0u;
    if constexpr (kNibble == 2) return ((x << 4) & 0x80008000u) | ((x >> 2) & 0x01c001c0u);
    return (x & 0x80008000u) | ((x >> 6) & 0x01c001c0u);
  }
};

template <>
struct KvFragment<ptx::F16, KvStorage::e2m1> {
  static constexpr int kBits = 4;
  static constexpr int kWidenedScaleLog2 = 8;  // 14 of the value, 8 of the scale, less 14
  static constexpr int kProbabilityLog2 = 0;
  static constexpr int kQueryLog2 = 0;
  static constexpr int kScaleShift = 1;
  static constexpr u32 kScaleMask = 0x3f803f80u;
  static constexpr u32 kScaleFactor = 0x74007400u;  // 2^14

  template <int kNibble>
  static WW_DEVICE u32 widen(u32 x) {
    if constexpr (kNibble == 3) return (x & 0x80008000u) | ((x >> 3) & 0x0e000e00u);
    return ((x << (12 - 4 * kNibble)) & 0x80008000u) | ((x << (9 - 4 * kNibble)) & 0x0e000e00u);
  }
};

// Two e4m3 codes, in the lower or upper half of a word, as a pair of halves.
template <bool kUpper>
WW_DEVICE u32 halves_of_e4m3(u32 codes) {
#if __CUDA_ARCH__ >= 890
  u32 pair;
  if constexpr (kUpper) {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h;}\n" : "=r"(pair) : "r"(codes));
  } else {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l;}\n" : "=r"(pair) : "r"(codes));
  }
  return pair;
#else
  const u32 upper_bytes = __byte_perm(codes, 0, kUpper ? 0x3424 : 0x1404);
  return ptx::F16::multiply((upper_bytes & 0x80008000u) | (upper_bytes >> 1 & 0x3f803f80u), 0x5c005c00u);  // 2^8
#endif
}

template <int kDim>
WW_DEVICE uint2 all_scale_codes(u32 smem) {
  if constexpr (kDim > 64) return ptx::load_shared_8(smem);
  const u32 codes = ptx::load_shared_4(smem);
  return make_uint2(codes, codes);
}

// The e4m3 codes of every other block scale of 128 dims (or all 64) of a row of fp4: byte c is block
// 2 * c + odd, that of 16-byte chunk c in half of the lanes. `smem`: the codes of these dims.
template <int kDim>
WW_DEVICE u32 scale_codes(u32 smem, bool odd) {
  const uint2 all = all_scale_codes<kDim>(smem);
  return __byte_perm(all.x, all.y, odd ? 0x7531 : 0x6420);
}

// The same of two rows, code by code one of each: of chunks 0 and 1, of chunks 2 and 3.
template <int kDim>
WW_DEVICE void pair_codes(u32 first, u32 second, bool odd, u32 (&pairs)[2]) {
  const uint2 a = all_scale_codes<kDim>(first), b = all_scale_codes<kDim>(second);
  pairs[0] = __byte_perm(a.x, b.x, odd ? 0x7351 : 0x6240);
  pairs[1] = __byte_perm(a.y, b.y, odd ? 0x7351 : 0x6240);
}

// A row's scale of chunk c (0..3 of its codes) in both halves, as a factor for widened values.
template <class Element>
WW_DEVICE u32 row_scale(u32 codes, int c) {
  using F = KvFragment<Element, KvStorage::e2m1>;
  const u32 upper_bytes = __byte_perm(codes, 0, c * 0x1010 + 0x0404);
  return Element::multiply(upper_bytes >> F::kScaleShift, F::kScaleFactor);
}

// The scales of chunk c of two rows, one a half.
template <class Element>
WW_DEVICE u32 row_pair_scales(u32 low, u32 high, int c) {
  using F = KvFragment<Element, KvStorage::e2m1>;
  const u32 codes = __byte_perm(low, high, c < 2 ? 0x5410 : 0x7632);
  const u32 placed = c % 2 == 0 ? codes << (8 - F::kScaleShift) : codes >> F::kScaleShift;
  return Element::multiply(placed & F::kScaleMask, F::kScaleFactor);
}

// 2^exponent for |exponent| < 127.
WW_DEVICE constexpr float power_of_two(int exponent) {
  float value = 1;
  for (int i = 0; i < exponent; ++i) value *= 2.0f;
  for (int i = 0; i > exponent; --i) value *= 0.5f;
  return value;
}

// Byte offset of 16-byte chunk `chunk` of row `row` in a tile whose rows stand kRowBytes apart,
// permuted so that eight rows read at one chunk fall into different banks.
template <int kRowBytes>
WW_DEVICE u32 swizzled(int row, int chunk) {
  constexpr int kChunks = kRowBytes / 16;
  const int flip = kChunks >= 8 ? row & 7 : kChunks == 4 ? row >> 1 & 3 : row >> 2 & 1;
  static_assert(kChunks >= 2);
  return static_cast<u32>(row * kRowBytes + (chunk ^ flip) * 16);
}

}  // namespace warpweave::cuda
