// Scalar conversions between f32 and the 8- and 4-bit floating point formats of the KV cache.
//
//   e4m3   sign, 4 exponent bits (bias 7), 3 mantissa bits; no infinities, 0x7f and 0xff are NaN;
//          largest 448, smallest normal 2^-6, smallest subnormal 2^-9 (the "fn" variant).
//   e5m2   IEEE layout: bias 15, infinities and NaN; largest finite 57344, smallest 2^-16.
//   e2m1   0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives: no infinities, no NaN.
// To f32 every value is exact (in bf16 and f16, too). From f32: round to nearest even, saturating:
// what lies past the largest finite value, infinities included, becomes that value. NaN becomes
// the NaN of its sign, 0x7f or 0xff, and in e2m1, which has none, the largest value of its sign.
// Formats: OCP 8-bit Floating Point Specification 1.0 and OCP Microscaling Formats 1.0.
//
// Constant expressions, always inlined, no standard library: files that are compiled for one CPU
// tier may include this header. Vector kernels are tested against these functions.
#pragma once

#include <stdint.h>

#define WW_FLOAT8_INLINE [[gnu::always_inline]] inline constexpr

namespace warpweave {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kE5m2Max = 57344.0f;
inline constexpr float kE2m1Max = 6.0f;

namespace float8_detail {

// The magnitude `bits` (an f32 without sign, below the format's largest value) rounded to a format
// of `kMantissa` mantissa bits whose exponent bias is `kBias`.
template <int kMantissa, int kBias>
WW_FLOAT8_INLINE uint32_t round_magnitude(uint32_t bits) {
  constexpr int kDrop = 23 - kMantissa;
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(127 - kBias + 1) << 23;
  if (bits < kSmallestNormal) {
    // Adding this power of two puts the format's last subnormal bit at the sum's last bit.
    constexpr uint32_t kShifter = static_cast<uint32_t>(127 - kBias + 1 + kDrop) << 23;
    const float sum = __builtin_bit_cast(float, bits) + __builtin_bit_cast(float, kShifter);
    return __builtin_bit_cast(uint32_t, sum) - kShifter;
  }
  const uint32_t rounded = bits + ((1u << (kDrop - 1)) - 1) + (bits >> kDrop & 1);
  return (rounded >> kDrop) - (static_cast<uint32_t>(127 - kBias) << kMantissa);
}

}  // namespace float8_detail

WW_FLOAT8_INLINE float e4m3_to_f32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  const uint32_t magnitude = code & 0x7f;
  if (magnitude == 0x7f) return __builtin_bit_cast(float, sign | 0x7fc00000u);
  const float scaled = __builtin_bit_cast(float, magnitude << 20) * 0x1p120f;
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, scaled) | sign);
}

WW_FLOAT8_INLINE uint8_t f32_to_e4m3(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7f);
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7e);
  return static_cast<uint8_t>(sign | float8_detail::round_magnitude<3, 7>(magnitude));
}

WW_FLOAT8_INLINE float e5m2_to_f32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  const uint32_t magnitude = code & 0x7f;
  if (magnitude >= 0x7c) {
    return __builtin_bit_cast(float, sign | (magnitude == 0x7c ? 0x7f800000u : 0x7fc00000u));
  }
  const float scaled = __builtin_bit_cast(float, magnitude << 21) * 0x1p112f;
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, scaled) | sign);
}

WW_FLOAT8_INLINE uint8_t f32_to_e5m2(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7f);
  if (magnitude >= 0x47600000u) return static_cast<uint8_t>(sign | 0x7b);
  return static_cast<uint8_t>(sign | float8_detail::round_magnitude<2, 15>(magnitude));
}

// Only the low four bits of `code` count.
WW_FLOAT8_INLINE float e2m1_to_f32(uint8_t code) {
  constexpr float kValues[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                 -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  return kValues[code & 15];
}

// The code stands in the low four bits.
WW_FLOAT8_INLINE uint8_t f32_to_e2m1(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = bits >> 28 & 8, magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x40c00000u) return static_cast<uint8_t>(sign | 7);
  return static_cast<uint8_t>(sign | float8_detail::round_magnitude<1, 1>(magnitude));
}

// Decoded values of all 256 codes, for kernels that look them up.
struct Float8Table {
  float values[256];
};

namespace float8_detail {

constexpr Float8Table make_table(float (*decode)(uint8_t)) {
  Float8Table table{};
  for (int code = 0; code < 256; ++code) table.values[code] = decode(static_cast<uint8_t>(code));
  return table;
}

}  // namespace float8_detail

inline constexpr Float8Table kE4m3Table =
    float8_detail::make_table([](uint8_t code) { return e4m3_to_f32(code); });
inline constexpr Float8Table kE5m2Table =
    float8_detail::make_table([](uint8_t code) { return e5m2_to_f32(code); });

}  // namespace warpweave

#undef WW_FLOAT8_INLINE
