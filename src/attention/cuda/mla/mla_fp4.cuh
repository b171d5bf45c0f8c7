// The latent codes of 416-byte tokens (kv/latent_token.h) as bf16 numbers, which hold them exactly: a code times its
// block's scale has six significant bits at most.
//
// Twice a code's value is a whole number n from -12 to 12, and the bf16 numbers 192 + n differ in their lower byte
// alone, so that a code is widened by looking a byte up. One multiply-add makes n * scale / 2 of it.
#pragma once

#include "attention/cuda/kv_fragment.h"
#include "device/cuda/ptx.h"

namespace warpweave::cuda {

using ptx::u32;

// What looked-up numbers are multiplied with, and what is added, by a block's scale.
struct MlaFp4Factors {
  u32 scale, offset;

  WW_DEVICE explicit MlaFp4Factors(float value)
      : scale(ptx::Bf16::pack(0.5f * value, 0.5f * value)), offset(ptx::Bf16::pack(-96.0f * value, -96.0f * value)) {}
};

struct MlaFp4 {
  // Eight codes, neighbours in pairs.
  static WW_DEVICE void widen(u32 codes, const MlaFp4Factors& by, u32 (&pairs)[4]) {
    constexpr u32 kUpper = kUpperByte * 0x01010101u;
    const u32 low = lower_bytes(codes), high = lower_bytes(codes >> 16);
    pairs[0] = times(permute(low, kUpper, 0x4140), by);
    pairs[1] = times(permute(low, kUpper, 0x4342), by);
    pairs[2] = times(permute(high, kUpper, 0x4140), by);
    pairs[3] = times(permute(high, kUpper, 0x4342), by);
  }

 private:
  static constexpr u32 kUpperByte = 0x43;

  // Where a selector's nibble is 8 or more, a byte whose highest bit is not set gives 0.
  static WW_DEVICE u32 permute(u32 a, u32 b, u32 selector) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
  }
  // 64 + n for four codes; the upper half does not count.
  static WW_DEVICE u32 lower_bytes(u32 codes) {
    const u32 positive = permute(0x43424140u, 0x4c484644u, codes);
    const u32 negative = permute(0x3d3e3f40u, 0x34383a3cu, codes ^ 0x8888u);
    return positive | negative;
  }
  static WW_DEVICE u32 times(u32 pair, const MlaFp4Factors& by) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(pair), "r"(by.scale), "r"(by.offset));
    return d;
  }
};

}  // namespace warpweave::cuda
