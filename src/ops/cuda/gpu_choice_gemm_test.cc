// The choice that a GEMM with a head leaves in place of logits against the choice over its logits: the same token bit
// for bit, the log of the sum of exponentials to rounding. Skipped without a GPU of compute capability 9.0.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/float16.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/stream.h"
#include "ops/cuda/choice_gemm.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/testing/device_values.h"

namespace warpweave::gpu {
namespace {

constexpr uint8_t kNanCode = 0x7f;

struct Choice {
  int column = 0;
  double log_sum = 0;
};

// As TopPart's rule says.
Choice choice_over(const float* logits, int64_t columns) {
  const auto counted = [](float x) { return std::isfinite(x) && x > kLeastChoice ? x : kLeastChoice; };
  Choice out;
  for (int i = 1; i < columns; ++i) {
    if (counted(logits[i]) > counted(logits[out.column])) out.column = i;
  }
  const double largest = counted(logits[out.column]);
  double sum = 0;
  for (int i = 0; i < columns; ++i) sum += std::exp(counted(logits[i]) - largest);
  out.log_sum = largest + std::log(sum);
  return out;
}

Choice choice_of(const TopPart* parts, int count) {
  unsigned long long key = 0;
  double largest = kLeastChoice, sum = 0;
  for (int i = 0; i < count; ++i) {
    key = std::max(key, parts[i].key);
    largest = std::max<double>(largest, parts[i].log_sum);
  }
  for (int i = 0; i < count; ++i) sum += std::exp(parts[i].log_sum - largest);
  return {static_cast<int>(0xffffffffu - static_cast<uint32_t>(key)), largest + std::log(sum)};
}

class Head {
 public:
  Head(int64_t rows, int64_t columns, int64_t depth) : rows_(rows), columns_(columns), depth_(depth) {
    std::mt19937 random(static_cast<unsigned>(columns + rows));
    std::normal_distribution<float> normal;
    codes_.resize(columns * depth);
    for (uint8_t& code : codes_) {
      code = static_cast<uint8_t>(random() >> 24);
      if ((code & kNanCode) == kNanCode) code = 0;
    }
    scales_.resize(columns);
    for (float& scale : scales_) scale = 1e-4f * (0.5f + static_cast<float>(random() % 1000) / 500);
    x_.resize(rows * depth);
    for (uint16_t& value : x_) value = f32_to_bf16(normal(random));
  }
  // Every logit again, half of the columns behind.
  void repeat_columns() {
    const int64_t half = columns_ / 2;
    std::copy_n(codes_.begin(), half * depth_, codes_.begin() + half * depth_);
    std::copy_n(scales_.begin(), half, scales_.begin() + half);
  }
  void spoil_column(int64_t column, uint8_t code) { codes_[column * depth_] = code; }
  void set_scale(int64_t column, float scale) { scales_[column] = scale; }
  void spoil_row(int64_t row) { std::fill_n(x_.begin() + row * depth_, depth_, f32_to_bf16(NAN)); }

  void expect_choice_over_logits() const {
    const DeviceBuffer codes = on_device(codes_), scales = on_device(scales_), x = on_device(x_);
    const DeviceBuffer y = DeviceBuffer::allocate(rows_ * columns_ * 4, "a test").value();
    const GpuLinear linear = {.weight = codes.as<void>(), .dtype = DType::fp8_e4m3, .in_features = depth_, .out_features = columns_, .scales = scales.as<float>()};
    auto gemm = GpuGemm::create();
    ASSERT_TRUE(gemm.ok() && (*gemm)->reserve_fp8(rows_, depth_).ok());
    (*gemm)->set_fp8_path(Fp8Path::stream);
    const GemmCall call = {.linear = &linear, .x = x.as<void>(), .rows = rows_, .y = y.as<void>(), .y_dtype = DType::f32, .y_stride = columns_};
    const int parts = (*gemm)->choice_parts(call);
    ASSERT_GT(parts, 0);
    ASSERT_TRUE((*gemm)->run(call, nullptr).ok());
    const auto logits = from_device<float>(y, rows_ * columns_);
    std::vector<Choice> expected;
    for (int64_t row = 0; row < rows_; ++row) expected.push_back(choice_over(logits.data() + row * columns_, columns_));
    const DeviceBuffer left = on_device(std::vector<uint8_t>(rows_ * parts * sizeof(TopPart), 0xff));
    for (int repeat = 0; repeat < 3; ++repeat) {
      ASSERT_TRUE((*gemm)->run_choice(call, left.as<TopPart>(), nullptr).ok());
      const auto found = from_device<TopPart>(left, rows_ * parts);
      for (int64_t row = 0; row < rows_; ++row) {
        const Choice got = choice_of(found.data() + row * parts, parts);
        ASSERT_EQ(got.column, expected[row].column) << "row " << row << " of " << rows_ << " x " << columns_ << " x " << depth_;
        ASSERT_NEAR(got.log_sum, expected[row].log_sum, 1e-4 * std::max(1.0, std::fabs(expected[row].log_sum))) << "row " << row;
      }
    }
  }

 private:
  int64_t rows_, columns_, depth_;
  std::vector<uint8_t> codes_;
  std::vector<float> scales_;
  std::vector<uint16_t> x_;
};

class GpuChoiceGemm : public testing::Test {
 protected:
  void SetUp() override {
    if (!probe_cuda_device().ok() || !keeps_fp8()) GTEST_SKIP() << "no GPU of compute capability 9.0";
  }
};

TEST_F(GpuChoiceGemm, IsTheChoiceOverLogits) {
  for (const int64_t rows : {17, 33, 64}) {
    for (const int64_t columns : {4096, 25360, 32064, 128256}) {
      for (const int64_t depth : {144, 1024}) Head(rows, columns, depth).expect_choice_over_logits();
    }
  }
}

TEST_F(GpuChoiceGemm, OfEqualLogitsTheLowerIdIsFirst) {
  for (const int64_t columns : {25360, 50656, 128256}) {
    Head head(40, columns, 384);
    head.repeat_columns();
    head.expect_choice_over_logits();
  }
}

TEST_F(GpuChoiceGemm, WhatIsNoNumberIsImpossible) {
  Head head(24, 30000, 512);
  for (const int64_t column : {0, 1, 191, 192, 29999}) head.spoil_column(column, kNanCode);
  for (const int64_t column : {2, 500, 29000}) head.set_scale(column, INFINITY);
  head.spoil_row(5);
  head.expect_choice_over_logits();
}

TEST_F(GpuChoiceGemm, LeavesOtherCallsToLogits) {
  const std::vector<uint8_t> some(16);
  auto gemm = GpuGemm::create();
  ASSERT_TRUE(gemm.ok() && (*gemm)->reserve_fp8(128, 4096).ok());
  GpuLinear linear = {.weight = some.data(), .dtype = DType::fp8_e4m3, .in_features = 4096, .out_features = 128256};
  GemmCall call = {.linear = &linear, .rows = 64, .y_dtype = DType::f32, .y_stride = 128256};
  EXPECT_GT((*gemm)->choice_parts(call), 0);
  for (const int64_t rows : {1, 16, 65, 128}) {
    call.rows = rows;
    EXPECT_EQ((*gemm)->choice_parts(call), 0) << rows;
  }
  call.rows = 64;
  linear.scaling = Fp8Scaling::block;
  EXPECT_EQ((*gemm)->choice_parts(call), 0);
  linear.scaling = Fp8Scaling::row;
  linear.dtype = DType::bf16;
  EXPECT_EQ((*gemm)->choice_parts(call), 0);
  linear.dtype = DType::fp8_e4m3;
  (*gemm)->set_batch_invariant();
  EXPECT_EQ((*gemm)->choice_parts(call), 0);
}

}  // namespace
}  // namespace warpweave::gpu
