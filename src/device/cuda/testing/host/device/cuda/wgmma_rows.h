// For tests: wgmma with the left operand in registers, on the host (ptx.h beside it). It is done when it is
// issued.
#pragma once

#include "device/cuda/ptx.h"

namespace warpweave::ptx {

inline u32 wgmma_descriptor(u32 smem, u32 leading_bytes) { return (smem & 0x3ffff) >> 4 | leading_bytes >> 4 << 16; }
inline u32 wgmma_advance(u32 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }

// d[16 x kColumns] += a[16 x 16] b of this warp; element (k, n) of b is at `address(k, n)` before the 128-byte swizzle.
template <class Element, int kColumns, class Address>
void multiply_swizzled(float (&d)[kColumns / 2], const u32 (&a)[4], const Address& address) {
  const auto upper = host_cta::lanes(std::array<u32, 2>{a[0], a[1]}),
             lower = host_cta::lanes(std::array<u32, 2>{a[2], a[3]});
  const u32 lane = host_cta::lane();
  for (u32 i = 0; i < kColumns / 2; ++i) {
    const u32 row = lane / 4, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    for (u32 k = 0; k < 16; ++k) {
      const u32 pair = (k < 8 ? upper : lower)[row * 4 + k % 8 / 2][i / 2 % 2];
      const u32 linear = address(k, column), bits = *shared_at<uint16_t>(linear ^ (linear >> 7 & 7) << 4);
      d[i] += (k % 2 == 0 ? Element::low(pair) : Element::high(pair)) * Element::low(bits);
    }
  }
  host_cta::lanes(0);  // nobody writes there before all have read
}

template <class Element, int kColumns>
struct WgmmaRows {
  static void rk(float (&d)[kColumns / 2], const u32 (&a)[4], u32 b, int accumulate) {
    for (float& x : d) x = accumulate ? x : 0.0f;
    const u32 base = (b & 0x3fff) << 4;
    multiply_swizzled<Element, kColumns>(d, a, [&](u32 k, u32 n) { return base + n * 128 + k * 2; });
  }
};

template <class Element, int kColumns>
struct Wgmma {
  // a: 64 rows of 128 bytes, of which this warp has 16.
  static void qk(float (&d)[kColumns / 2], u32 a, u32 b, int accumulate) {
    const u32 lane = host_cta::lane(), row = threadIdx.x / 32 % 4 * 16 + lane / 4, base = (a & 0x3fff) << 4;
    u32 left[4];
    for (u32 i = 0; i < 4; ++i) {
      const u32 linear = base + (row + i % 2 * 8) * 128 + (lane % 4 * 2 + i / 2 * 8) * 2;
      left[i] = *shared_at<u32>(linear ^ (linear >> 7 & 7) << 4);
    }
    WgmmaRows<Element, kColumns>::rk(d, left, b, accumulate);
  }
  static void pv(float (&d)[kColumns / 2], const u32 (&a)[4], u32 b, int accumulate) {
    for (float& x : d) x = accumulate ? x : 0.0f;
    const u32 base = (b & 0x3fff) << 4, leading = b >> 16 << 4;
    multiply_swizzled<Element, kColumns>(d, a,
                                         [&](u32 k, u32 n) { return base + n / 64 * leading + k * 128 + n % 64 * 2; });
  }
};

}  // namespace warpweave::ptx
