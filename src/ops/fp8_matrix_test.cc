// Quantising and widening weights of 8 bits against the scalar definition of e4m3.
#include "ops/fp8_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/float16.h"
#include "base/float8.h"

namespace warpweave {
namespace {

struct Quantized {
  std::vector<uint8_t> codes;
  WeightScales scales;
};

TensorView view_of(const void* data, DType dtype, int64_t rows, int64_t cols) {
  return {.data = data, .dtype = dtype, .rank = 2, .shape = {rows, cols}};
}

Result<Quantized> quantize(const std::vector<float>& values, int64_t rows, int64_t block_rows, int64_t block_cols) {
  const int64_t cols = static_cast<int64_t>(values.size()) / rows;
  ThreadTeam team(2);
  Quantized out;
  out.codes.resize(values.size());
  WW_ASSIGN_OR_RETURN(out.scales, quantize_fp8(view_of(values.data(), DType::f32, rows, cols), block_rows, block_cols,
                                               out.codes.data(), team));
  return out;
}

std::vector<float> random_values(size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.03f);
  std::vector<float> out(count);
  for (float& x : out) x = normal(random);
  return out;
}

// With an amplitude of 448 the scale is 1, so that codes are those of the values: every e4m3 value, what
// lies between two, and both sides of the middle.
TEST(Fp8Matrix, CodesAreTheNearestEvenOnes) {
  std::vector<float> values = {448.0f};
  for (int code = 0; code < 0x7e; ++code) {
    const float low = e4m3_to_f32(static_cast<uint8_t>(code)), high = e4m3_to_f32(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    for (float x : {low, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 449.0f)}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
  const auto got = quantize(values, 1, 1, static_cast<int64_t>(values.size()));
  ASSERT_TRUE(got.ok()) << got.status().message();
  ASSERT_EQ(got->scales.values, std::vector<float>{1.0f});
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(got->codes[i], f32_to_e4m3(values[i])) << values[i];
}

// e4m3 keeps 4 significant bits: half a step is 2^-4 of the value, or 2^-10 below its normal numbers.
TEST(Fp8Matrix, EveryKindOfBlockWidensToWithinHalfAStep) {
  const int64_t rows = 300, cols = 272;
  const std::vector<float> values = random_values(rows * cols);
  for (const auto& [block_rows, block_cols] :
       {std::pair<int64_t, int64_t>{1, cols}, {rows, cols}, {128, 128}, {12, 20}, {512, 512}}) {
    const auto got = quantize(values, rows, block_rows, block_cols);
    ASSERT_TRUE(got.ok()) << got.status().message();
    std::vector<float> wide(cols);
    for (int64_t r = 0; r < rows; ++r) {
      widen_fp8_row(view_of(got->codes.data(), DType::fp8_e4m3, rows, cols), got->scales, r, wide.data());
      for (int64_t c = 0; c < cols; ++c) {
        const float scale = got->scales.at(r, c), value = values[r * cols + c];
        ASSERT_EQ(wide[c], e4m3_to_f32(got->codes[r * cols + c]) * scale);
        ASSERT_LE(std::fabs(wide[c] - value), std::max(std::fabs(value) * 0x1.0001p-4f, scale * 0x1p-10f))
            << r << " " << c;
      }
    }
  }
}

TEST(Fp8Matrix, ScalesPutTheLargestOfEachBlockAt448) {
  const int64_t rows = 200, cols = 144;
  const std::vector<float> values = random_values(rows * cols);
  const auto got = quantize(values, rows, 128, 128);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->scales.stride, 2);
  ASSERT_EQ(got->scales.values.size(), 4u);
  for (int64_t br = 0; br < 2; ++br) {
    for (int64_t bc = 0; bc < 2; ++bc) {
      float largest = 0;
      for (int64_t r = br * 128; r < std::min(rows, br * 128 + 128); ++r) {
        for (int64_t c = bc * 128; c < std::min(cols, bc * 128 + 128); ++c) {
          largest = std::max(largest, std::fabs(values[r * cols + c]));
        }
      }
      EXPECT_EQ(got->scales.values[br * 2 + bc], largest / 448) << br << " " << bc;
    }
  }
}

TEST(Fp8Matrix, HalfTypesAreReadAsTheirValues) {
  const int64_t rows = 5, cols = 32;
  std::vector<float> values = random_values(rows * cols);
  std::vector<uint16_t> halves(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    halves[i] = f32_to_bf16(values[i]);
    values[i] = bf16_to_f32(halves[i]);
  }
  const auto wide = quantize(values, rows, 1, cols);
  ThreadTeam team(1);
  std::vector<uint8_t> codes(halves.size());
  const auto scales = quantize_fp8(view_of(halves.data(), DType::bf16, rows, cols), 1, cols, codes.data(), team);
  ASSERT_TRUE(scales.ok() && wide.ok());
  EXPECT_EQ(codes, wide->codes);
  EXPECT_EQ(scales->values, wide->scales.values);
}

TEST(Fp8Matrix, ZerosAndTheSmallestNumbersSurvive) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const auto got = quantize({0, 0, -0.0f, 0, tiny, -tiny, 0, 2 * tiny}, 2, 1, 4);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->scales.values[0], 1.0f);
  EXPECT_GT(got->scales.values[1], 0.0f);
  for (uint8_t code : got->codes) EXPECT_EQ(e4m3_to_f32(code), 0.0f);
}

TEST(Fp8Matrix, NanCodesAreFound) {
  ThreadTeam team(2);
  std::vector<uint8_t> codes(3 << 20, 0x7e);
  const TensorView view = view_of(codes.data(), DType::fp8_e4m3, 3, 1 << 20);
  EXPECT_FALSE(has_nan_e4m3(view, team));
  for (uint8_t nan : {0x7f, 0xff}) {
    codes.back() = nan;
    EXPECT_TRUE(has_nan_e4m3(view, team));
  }
}

TEST(Fp8Matrix, WhatIsNotFiniteIsRefused) {
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(64, 1.0f);
    values[37] = bad;
    const auto got = quantize(values, 4, 1, 16);
    ASSERT_FALSE(got.ok());
    EXPECT_EQ(got.status().code(), StatusCode::data_loss);
  }
}

}  // namespace
}  // namespace warpweave
