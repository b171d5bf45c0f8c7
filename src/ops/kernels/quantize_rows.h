// Rounding of f32 rows to the KV cache's fp8 and fp4 formats, for elementwise_rows.h. Bit for bit
// what base/float8.h and kv/kv_codec.h define, except for the signs of NaN blocks in fp4.
#pragma once

#include "base/float8.h"
#include "ops/kernels/simd16.h"

namespace {

using namespace warpweave;

// The steps of base/float8.h: magnitudes round to nearest even, saturate, and get their sign back.
template <int kMantissa, int kBias, int kTopCode>
WW_INLINE IVec round_to_code(Vec v) {
  constexpr int kDrop = 23 - kMantissa;
  constexpr int32_t kSmallestNormal = (127 - kBias + 1) << 23;
  constexpr int32_t kShifter = (127 - kBias + 1 + kDrop) << 23;
  constexpr int32_t kTop = (kTopCode << kDrop) + ((127 - kBias) << 23);
  constexpr int kSignShift = kMantissa == 1 ? 28 : 24;
  constexpr int32_t kSignBit = kMantissa == 1 ? 8 : 0x80;
  const IVec bits = vbits(v);
  const IVec magnitude = iand(bits, iset1(0x7fffffff));
  const IVec small = isub(vbits(vadd(vfrom_bits(magnitude), vfrom_bits(iset1(kShifter)))), iset1(kShifter));
  const IVec odd = iand(ishr<kDrop>(magnitude), iset1(1));
  const IVec rounded = iadd(magnitude, iadd(odd, iset1((1 << (kDrop - 1)) - 1)));
  const IVec normal = isub(ishr<kDrop>(rounded), iset1((127 - kBias) << kMantissa));
  IVec code = iselect_gt(iset1(kSmallestNormal), magnitude, small, normal);
  code = iselect_gt(magnitude, iset1(kTop - 1), iset1(kTopCode), code);
  if constexpr (kMantissa != 1) {
    code = iselect_gt(magnitude, iset1(0x7f800000), iset1(0x7f), code);
  }
  return ior(code, iand(ishr<kSignShift>(bits), iset1(kSignBit)));
}

template <int kMantissa, int kBias, int kTopCode>
void quantize_fp8(const float* x, float inverse_scale, int64_t n, uint8_t* out) {
  each_run(n, [&](int64_t at, int count) __attribute__((always_inline)) {
    const Vec v = vmul(load_run(x + at, count), vset1(inverse_scale));
    const IVec code = round_to_code<kMantissa, kBias, kTopCode>(v);
    if (count == kLanes) {
      istore_u8(out + at, code);
      return;
    }
    uint8_t lanes[kLanes];
    istore_u8(lanes, code);
    for (int i = 0; i < count; ++i) out[at + i] = lanes[i];
  });
}

// The low halves of eight bytes side by side: byte i of the result holds bytes 2i and 2i + 1
// (little-endian, as all supported CPUs are).
WW_INLINE uint32_t pack_nibbles(const uint8_t* codes) {
  uint64_t word;
  __builtin_memcpy(&word, codes, 8);
  word = (word | word >> 4) & 0x00ff00ff00ff00ff;
  word = (word | word >> 8) & 0x0000ffff0000ffff;
  return static_cast<uint32_t>(word | word >> 16);
}

void quantize_fp4(const float* x, float head_scale, int64_t n, uint8_t* out, uint8_t* block_scales) {
  const float to_block_scale = (1.0f / kE2m1Max) * (1.0f / head_scale);
  for (int64_t at = 0; at < n; at += kLanes) {
    const Vec v = vload(x + at);
    const bool has_nan = vequal_bits(v, v) != 0xffff;
    const float top = has_nan ? __builtin_nanf("") : vreduce_max(vabs(v));
    const uint8_t wanted = f32_to_e4m3(top * to_block_scale);
    const uint8_t scale = wanted == 0 ? 1 : wanted;
    block_scales[at / kLanes] = scale;
    const float inverse = 1.0f / (kE4m3Table.values[scale] * head_scale);
    uint8_t codes[kLanes];
    istore_u8(codes, round_to_code<1, 1, 7>(vmul(v, vset1(inverse))));
    const uint32_t packed[2] = {pack_nibbles(codes), pack_nibbles(codes + 8)};
    __builtin_memcpy(out + at / 2, packed, 8);
  }
}

}  // namespace
