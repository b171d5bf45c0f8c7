// How stored K and V become operands of mma.sync. fp8 is widened by moving bits: an 8-bit code
// placed into the 16-bit format's sign, exponent and mantissa is the value times a power of two,
// which the caller folds into the softmax scale and the output (kWidenedScaleLog2). The tensor cores
// take the subnormals this makes as they are.
//
// `widen_low` gives bytes 0 and 2 of a word, `widen_high` bytes 1 and 3, as a pair of 16-bit values.
#pragma once

#include "attention/cuda/ptx.h"

namespace warpweave::cuda {

using ptx::u32;

enum class KvStorage { same16, e4m3, e5m2 };

template <class Element, KvStorage kStorage>
struct KvFragment;

template <class Element>
struct KvFragment<Element, KvStorage::same16> {
  static constexpr int kBytes = 2;
  static constexpr int kWidenedScaleLog2 = 0;  // stored value = widened value * 2^this
  static constexpr int kProbabilityLog2 = 0;   // P is scaled by 2^this before the product with V
  static constexpr int kQueryLog2 = 0;         // and Q by 2^this
};

template <>
struct KvFragment<ptx::Bf16, KvStorage::e4m3> {
  static constexpr int kBytes = 1;
  static constexpr int kWidenedScaleLog2 = 120;
  // Without these shifts the products would fall below the smallest normal float32.
  static constexpr int kProbabilityLog2 = 100;
  static constexpr int kQueryLog2 = 100;
  static WW_DEVICE u32 widen_high(u32 x) { return (x & 0x80008000u) | ((x >> 4) & 0x07f007f0u); }
  static WW_DEVICE u32 widen_low(u32 x) { return ((x << 8) & 0x80008000u) | ((x << 4) & 0x07f007f0u); }
};

template <>
struct KvFragment<ptx::Bf16, KvStorage::e5m2> {
  static constexpr int kBytes = 1;
  static constexpr int kWidenedScaleLog2 = 112;
  static constexpr int kProbabilityLog2 = 92;
  static constexpr int kQueryLog2 = 92;
  static WW_DEVICE u32 widen_high(u32 x) { return (x & 0x80008000u) | ((x >> 3) & 0x0fe00fe0u); }
  static WW_DEVICE u32 widen_low(u32 x) { return ((x << 8) & 0x80008000u) | ((x << 5) & 0x0fe00fe0u); }
};

template <>
struct KvFragment<ptx::F16, KvStorage::e4m3> {
  static constexpr int kBytes = 1;
  static constexpr int kWidenedScaleLog2 = 8;
  static constexpr int kProbabilityLog2 = 0;
  static constexpr int kQueryLog2 = 0;
  static WW_DEVICE u32 widen_high(u32 x) { return (x & 0x80008000u) | ((x >> 1) & 0x3f803f80u); }
  static WW_DEVICE u32 widen_low(u32 x) { return ((x << 8) & 0x80008000u) | ((x << 7) & 0x3f803f80u); }
};

template <>
struct KvFragment<ptx::F16, KvStorage::e5m2> {
  static constexpr int kBytes = 1;
  static constexpr int kWidenedScaleLog2 = 0;
  static constexpr int kProbabilityLog2 = 0;
  static constexpr int kQueryLog2 = 0;
  static WW_DEVICE u32 widen_high(u32 x) { return x & 0xff00ff00u; }
  static WW_DEVICE u32 widen_low(u32 x) { return (x << 8) & 0xff00ff00u; }
};

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
  static_assert(kChunks >= 4);
  const int flip = kChunks >= 8 ? row & 7 : row >> 1 & 3;
  return static_cast<u32>(row * kRowBytes + (chunk ^ flip) * 16);
}

}  // namespace warpweave::cuda
