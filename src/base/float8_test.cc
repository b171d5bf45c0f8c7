// Every code of every format, and every f32 that lies on, beside or between two neighbouring codes.
#include "base/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/float16.h"

namespace warpweave {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The value of a code by the definition of the format.
double defined(int code, int exponent_bits, int mantissa_bits, int bias) {
  const int exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const double sign = code >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
  const double unit = std::ldexp(1.0, -mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(mantissa * unit, 1 - bias);
  return sign * std::ldexp(1 + mantissa * unit, exponent - bias);
}

TEST(Float8, DecodesEveryE4m3Code) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_f32(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_TRUE(std::isnan(kE4m3Table.values[code]));
      continue;
    }
    EXPECT_EQ(value, defined(code, 4, 3, 7)) << code;
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
    EXPECT_EQ(kE4m3Table.values[code], value);
    EXPECT_EQ(bf16_to_f32(f32_to_bf16(value)), value) << "exact in bf16";
  }
  EXPECT_EQ(e4m3_to_f32(0x7e), kE4m3Max);
}

TEST(Float8, DecodesEveryE5m2Code) {
  for (int code = 0; code < 256; ++code) {
    const float value = e5m2_to_f32(static_cast<uint8_t>(code));
    if ((code & 0x7f) > 0x7c) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_TRUE(std::isnan(kE5m2Table.values[code]));
      continue;
    }
    EXPECT_EQ(value, (code & 0x7f) == 0x7c ? std::copysign(kInf, value) : defined(code, 5, 2, 15));
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
    EXPECT_EQ(kE5m2Table.values[code], value);
    EXPECT_EQ(f16_to_f32(static_cast<uint16_t>(code << 8)), value) << "the upper byte of an f16";
  }
  EXPECT_EQ(e5m2_to_f32(0x7b), kE5m2Max);
}

TEST(Float8, DecodesEveryE2m1Code) {
  for (int code = 0; code < 16; ++code) {
    const float value = e2m1_to_f32(static_cast<uint8_t>(code));
    EXPECT_EQ(value, defined(code, 2, 1, 1)) << code;
    EXPECT_EQ(std::signbit(value), code >= 8) << code;
    EXPECT_EQ(e2m1_to_f32(static_cast<uint8_t>(code | 0xa0)), value) << "upper bits do not count";
  }
}

using Encode = uint8_t (*)(float);
using Decode = float (*)(uint8_t);

struct Format {
  Encode encode;
  Decode decode;
  int largest;  // code of the largest finite value
  int sign;     // bit of the sign
};

const Format kFormats[] = {
    {[](float v) { return f32_to_e4m3(v); }, [](uint8_t c) { return e4m3_to_f32(c); }, 0x7e, 0x80},
    {[](float v) { return f32_to_e5m2(v); }, [](uint8_t c) { return e5m2_to_f32(c); }, 0x7b, 0x80},
    {[](float v) { return f32_to_e2m1(v); }, [](uint8_t c) { return e2m1_to_f32(c); }, 7, 8},
};

// Positive codes ascend with their values, so the nearest of a midpoint's two neighbours is even.
TEST(Float8, RoundsToNearestEvenAroundEveryCode) {
  for (const Format& format : kFormats) {
    for (int code = 0; code <= format.largest; ++code) {
      const float value = format.decode(static_cast<uint8_t>(code));
      EXPECT_EQ(format.encode(value), code);
      EXPECT_EQ(format.encode(-value), code | format.sign);
      if (code == format.largest) break;
      const float next = format.decode(static_cast<uint8_t>(code + 1));
      const float middle = value + (next - value) / 2;  // exact: a few bits each
      const int even = code % 2 == 0 ? code : code + 1;
      for (const float sign : {1.0f, -1.0f}) {
        const int bit = sign < 0 ? format.sign : 0;
        EXPECT_EQ(format.encode(sign * middle), even | bit) << middle;
        EXPECT_EQ(format.encode(sign * std::nextafter(middle, 0.0f)), code | bit) << middle;
        EXPECT_EQ(format.encode(sign * std::nextafter(middle, kInf)), (code + 1) | bit) << middle;
        EXPECT_EQ(format.encode(sign * std::nextafter(value, kInf)), code | bit) << value;
        EXPECT_EQ(format.encode(sign * std::nextafter(next, 0.0f)), (code + 1) | bit) << next;
      }
    }
  }
}

TEST(Float8, SaturatesAndKeepsNaN) {
  for (const Format& format : kFormats) {
    const float top = format.decode(static_cast<uint8_t>(format.largest));
    for (const float value : {top * 1.01f, top * 2, std::numeric_limits<float>::max(), kInf}) {
      EXPECT_EQ(format.encode(value), format.largest) << value;
      EXPECT_EQ(format.encode(-value), format.largest | format.sign) << value;
    }
    EXPECT_EQ(format.encode(std::numeric_limits<float>::denorm_min()), 0);
    EXPECT_EQ(format.encode(-0.0f), format.sign);
  }
  EXPECT_EQ(f32_to_e4m3(kNaN), 0x7f);
  EXPECT_EQ(f32_to_e4m3(-kNaN), 0xff);
  EXPECT_EQ(f32_to_e5m2(kNaN), 0x7f);
  EXPECT_EQ(f32_to_e5m2(-kNaN), 0xff);
  EXPECT_EQ(f32_to_e2m1(kNaN), 7);
  EXPECT_EQ(f32_to_e2m1(-kNaN), 15);
}

TEST(Float8, ConvertsInConstantExpressions) {
  static_assert(f32_to_e4m3(1.0f) == 0x38 && e4m3_to_f32(0x38) == 1.0f);
  static_assert(f32_to_e5m2(1.0f) == 0x3c && e5m2_to_f32(0x3c) == 1.0f);
  static_assert(f32_to_e2m1(1.0f) == 2 && e2m1_to_f32(2) == 1.0f);
}

}  // namespace
}  // namespace warpweave
