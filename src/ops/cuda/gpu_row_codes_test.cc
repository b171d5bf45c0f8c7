// Rows rounded straight from sums against the norm, or the copy, and the rounding behind it: the same bits. Skipped without a
// GPU of compute capability 9.0.
#include <gtest/gtest.h>

#include <random>

#include "device/cuda/cuda_device.h"
#include "device/cuda/stream.h"
#include "ops/cuda/fp8.h"
#include "ops/cuda/norm_codes.h"
#include "ops/cuda/norms.h"
#include "ops/cuda/row_codes.h"
#include "ops/cuda/testing/device_values.h"

namespace warpweave::gpu {
namespace {

struct Case {
  int64_t rows, cols;
  int splits;
  bool normed;
  DType dtype;
};

std::vector<float> normal_values(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& value : out) value = normal(random);
  return out;
}

class GpuRowCodes : public testing::TestWithParam<Case> {};

TEST_P(GpuRowCodes, AreThoseOfTheNormedRows) {
  if (!probe_cuda_device().ok() || !keeps_fp8()) GTEST_SKIP() << "no GPU of compute capability 9.0";
  const auto& [rows, cols, splits, normed, dtype] = GetParam();
  ASSERT_TRUE(code_sums_takes(cols));
  const int64_t count = rows * cols;
  const DeviceBuffer before = on_device(normal_values(count, 1)), after = on_device(normal_values(count, 1));
  const DeviceBuffer sums = on_device(normal_values(splits * count, 2)), weight = on_device(normal_values(cols, 3));
  const PartialSums partials = {sums.as<float>(), splits, count};
  const float* const norm_weight = normed ? weight.as<float>() : nullptr;
  const DeviceBuffer h = DeviceBuffer::allocate(count * 2, "a test").value();
  if (normed) {
    rms_norm({.x = before.as<float>(), .partials = partials, .rows = rows, .cols = cols, .weight = norm_weight, .weight_offset = 1, .out = h.as<void>(), .out_dtype = dtype}, nullptr);
  } else {
    copy_rows({.x = before.as<float>(), .partials = partials, .count = count, .out = h.as<void>(), .out_dtype = dtype}, nullptr);
  }
  const DeviceBuffer codes = DeviceBuffer::allocate(count, "a test").value(), scales = DeviceBuffer::allocate(rows * 4, "a test").value();
  quantize_rows({.x = h.as<void>(), .dtype = dtype, .rows = rows, .cols = cols, .codes = codes.as<uint8_t>(), .scales = scales.as<float>()}, nullptr);

  const DeviceBuffer got_codes = on_device(std::vector<uint8_t>(count, 0x55)), got_scales = on_device(std::vector<float>(rows, -1));
  const DeviceBuffer kept = on_device(std::vector<uint16_t>(count, 0x5555));
  std::vector<int32_t> keep(rows);
  for (int64_t i = 0; i < rows; ++i) keep[i] = static_cast<int32_t>(rows - 1 - i);
  const DeviceBuffer places = on_device(keep);
  code_sums({.x = after.as<float>(), .partials = partials, .x_out = after.as<float>(), .rows = rows, .cols = cols, .weight = norm_weight, .weight_offset = 1, .dtype = dtype, .kept = kept.as<void>(), .keep = places.as<int32_t>(), .to = {got_codes.as<uint8_t>(), got_scales.as<float>()}}, nullptr);
  EXPECT_EQ(from_device<float>(after, count), from_device<float>(before, count));
  EXPECT_EQ(from_device<float>(got_scales, rows), from_device<float>(scales, rows));
  EXPECT_EQ(from_device<uint8_t>(got_codes, count), from_device<uint8_t>(codes, count));
  const auto values = from_device<uint16_t>(h, count), in_turn = from_device<uint16_t>(kept, count);
  for (int64_t i = 0; i < rows; ++i) {
    ASSERT_TRUE(std::equal(values.begin() + i * cols, values.begin() + (i + 1) * cols, in_turn.begin() + keep[i] * cols)) << i;
  }
}

struct ExpertsCase {
  int64_t rows, cols;
  int k;
};

class GpuExpertsNormCodes : public testing::TestWithParam<ExpertsCase> {};

TEST_P(GpuExpertsNormCodes, AreThoseOfTheNormedRows) {
  if (!probe_cuda_device().ok() || !keeps_fp8()) GTEST_SKIP() << "no GPU of compute capability 9.0";
  const auto& [rows, cols, k] = GetParam();
  ASSERT_TRUE(norm_experts_codes_takes(cols, DType::bf16));
  const int64_t count = rows * cols, blocks = cols / kFp8Block, stride = rows + 3;
  std::vector<int32_t> place_of(rows * k);
  for (int64_t i = 0; i < rows * k; ++i) place_of[i] = static_cast<int32_t>((i * 7) % (rows * k));
  const DeviceBuffer places = on_device(place_of), weights = on_device(normal_values(rows * k, 1));
  DeviceBuffer results = DeviceBuffer::allocate(rows * k * cols * 2, "a test").value();
  const DeviceBuffer values = on_device(normal_values(rows * k * cols, 2)), weight = on_device(normal_values(cols, 3));
  copy_rows({.x = values.as<float>(), .count = rows * k * cols, .out = results.as<void>(), .out_dtype = DType::bf16}, nullptr);
  const DeviceBuffer before = on_device(normal_values(count, 4)), after = on_device(normal_values(count, 4));
  const DeviceBuffer h = DeviceBuffer::allocate(count * 2, "a test").value();
  NormExpertsCall call = {{.x = before.as<float>(), .rows = rows, .cols = cols, .weight = weight.as<float>(), .out = h.as<void>(), .out_dtype = DType::bf16}, {results.as<void>(), places.as<int32_t>(), weights.as<float>(), k}};
  norm_experts(call, nullptr);
  const DeviceBuffer codes = DeviceBuffer::allocate(count, "a test").value(), scales = DeviceBuffer::allocate(rows * blocks * 4, "a test").value();
  quantize_rows({.x = h.as<void>(), .dtype = DType::bf16, .rows = rows, .cols = cols, .scaling = Fp8Scaling::block, .codes = codes.as<uint8_t>(), .scales = scales.as<float>()}, nullptr);

  const DeviceBuffer got_codes = on_device(std::vector<uint8_t>(count, 0x55)), got_scales = on_device(std::vector<float>(stride * blocks, -1));
  call.norm.x = after.as<float>();
  call.norm.out = nullptr;
  norm_experts_codes({call, {got_codes.as<uint8_t>(), got_scales.as<float>()}, stride}, nullptr);
  EXPECT_EQ(from_device<float>(after, count), from_device<float>(before, count));
  EXPECT_EQ(from_device<uint8_t>(got_codes, count), from_device<uint8_t>(codes, count));
  const auto of_blocks = from_device<float>(scales, rows * blocks), got = from_device<float>(got_scales, stride * blocks);
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t row = 0; row < stride; ++row) {
      ASSERT_EQ(got[block * stride + row], row < rows ? of_blocks[block * rows + row] : -1) << block << " " << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuExpertsNormCodes,
                         testing::Values(ExpertsCase{1, 2048, 8}, ExpertsCase{17, 384, 2}, ExpertsCase{64, 2048, 8}, ExpertsCase{300, 640, 5},
                                         ExpertsCase{70, 1536, 6}, ExpertsCase{40, 5120, 4}, ExpertsCase{33, 7168, 3}, ExpertsCase{40, 11264, 2},
                                         ExpertsCase{1500, 2048, 8}, ExpertsCase{1100, 4096, 4}, ExpertsCase{1030, 6272, 2}));

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const int64_t cols : {384, 1040, 2048, 4096, 5120, 12288}) {
    for (const int splits : {1, 3, 4}) {
      for (const bool normed : {false, true}) {
        out.push_back({17, cols, splits, normed, DType::bf16});
        out.push_back({64, cols, splits, normed, DType::f16});
      }
    }
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuRowCodes, testing::ValuesIn(cases()));

}  // namespace
}  // namespace warpweave::gpu
