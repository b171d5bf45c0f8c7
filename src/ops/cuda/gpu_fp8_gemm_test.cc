// GEMMs of 8-bit weights against sums in f64 of what the codes mean, each way on its own; the codes of
// activations against the host's. Skipped without a GPU of compute capability 9.0.
//
// Bounds, with A = sum over the depth of |x * w|:
//   small    weights and inputs are exact in the tensor cores, sums are f32: depth * 2^-24 of A, and
//            less in practice; 2^-17 of A is asked for (the tensor cores drop bits when they align sums)
//   stream, tensor
//            against the rounded inputs: sums of 128 products keep about 14 bits below the largest,
//            then go to f32. Emulated on 20000 random sums, the worst error is 6.1e-4 of A at depth 128,
//            2.8e-4 at 384, 1.0e-4 at 1024, 3.3e-5 at 4096 (with fast accumulation 4.3e-4 there): 2^-10
//            of A is asked for, from depth 1024 on 2^-12.
//            Against the inputs as they were: e4m3 has a step of 2^-3, so half of it, 2^-4 of A, at most
//   widen    weights are rounded to bf16, 2^-9 of A (f16: 2^-12), and sums as above
// and what the output's own rounding adds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "base/float16.h"
#include "base/float8.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/stream.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/stream_gemm.h"
#include "ops/cuda/testing/device_values.h"

namespace warpweave::gpu {
namespace {

bool usable_gpu() { return probe_cuda_device().ok() && keeps_fp8(); }

uint16_t narrow(float x, DType dtype) { return dtype == DType::f16 ? f32_to_f16(x) : f32_to_bf16(x); }
float wide(uint16_t x, DType dtype) { return dtype == DType::f16 ? f16_to_f32(x) : bf16_to_f32(x); }

struct Case {
  int64_t rows, n, k;
  Fp8Scaling scaling;
  DType dtype;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.rows << "x" << c.n << "x" << c.k << (c.scaling == Fp8Scaling::row ? " rows" : " blocks") << " "
             << dtype_info(c.dtype).name;
}

// Sum and sum of magnitudes of one output.
struct Expected {
  double sum = 0, magnitude = 0;
};

class GpuFp8GemmTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!usable_gpu()) GTEST_SKIP() << "no GPU of compute capability 9.0";
    const Case& c = GetParam();
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    x_.resize(c.rows * c.k);
    for (int64_t i = 0; i < c.rows * c.k; ++i) {
      // Rows and 128 columns of their own size, so that a scale in the wrong place shows.
      const float size = static_cast<float>(1 + i / c.k % 5) * (i % c.k / 128 % 2 == 0 ? 1.0f : 0.1f);
      x_[i] = narrow(size * normal(random), c.dtype);
    }
    codes_.resize(c.n * c.k);
    uint8_t drawn[256];
    for (uint8_t& code : drawn) code = f32_to_e4m3(100 * normal(random));
    for (uint8_t& code : codes_) code = drawn[random() >> 24];
    stride_ = c.scaling == Fp8Scaling::row ? 1 : fp8_scale_stride(c.k);
    scales_.resize(c.scaling == Fp8Scaling::row ? c.n : (c.n + 127) / 128 * stride_);
    for (float& scale : scales_) scale = 1e-3f * (0.5f + static_cast<float>(random() % 1000) / 500);
    device_x_ = on_device(x_.data(), x_.size() * 2);
    device_codes_ = on_device(codes_.data(), codes_.size());
    device_scales_ = on_device(scales_.data(), scales_.size() * 4);
    linear_ = {.weight = device_codes_.as<void>(), .dtype = DType::fp8_e4m3, .in_features = c.k, .out_features = c.n,
               .scales = device_scales_.as<float>(), .scaling = c.scaling, .x_dtype = c.dtype};
    auto gemm = GpuGemm::create();
    ASSERT_TRUE(gemm.ok()) << gemm.status().message();
    gemm_ = std::move(*gemm);
    ASSERT_TRUE(gemm_->reserve_fp8(c.rows, c.k).ok());
  }

  float weight(int64_t row, int64_t col) const {
    const float scale = GetParam().scaling == Fp8Scaling::row ? scales_[row] : scales_[row / 128 * stride_ + col / 128];
    return kE4m3Table.values[codes_[row * GetParam().k + col]] * scale;
  }

  std::vector<float> given_x() const {
    std::vector<float> out(x_.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = wide(x_[i], GetParam().dtype);
    return out;
  }

  // As quantize_rows() rounds them.
  std::vector<float> rounded_x() const {
    const Case& c = GetParam();
    std::vector<float> out = given_x();
    const int64_t step = c.scaling == Fp8Scaling::row ? c.k : 128;
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t first = 0; first < c.k; first += step) {
        float* const from = out.data() + r * c.k + first;
        const int64_t count = std::min(step, c.k - first);
        float largest = 0;
        for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(from[i]));
        for (int64_t i = 0; i < count; ++i) from[i] = e4m3_to_f32(f32_to_e4m3(from[i] * (448 / largest))) * (largest / 448);
      }
    }
    return out;
  }

  Expected expected(const std::vector<float>& x, int64_t row, int64_t col) const {
    Expected out;
    for (int64_t d = 0; d < GetParam().k; ++d) {
      const double product = double{x[row * GetParam().k + d]} * weight(col, d);
      out.sum += product;
      out.magnitude += std::fabs(product);
    }
    return out;
  }

  bool streams() const {
    const Case& c = GetParam();
    return c.rows > kSmallGemmFp8Rows && c.rows <= kStreamGemmCodeRows && has_wgmma();
  }
  // Of sums by tensor cores that multiply codes.
  static double sum_bound() { return GetParam().k < 1024 ? 0x1p-10 : 0x1p-12; }

  std::vector<float> run(Fp8Path path, float before = 0) {
    const Case& c = GetParam();
    gemm_->set_fp8_path(path);
    std::vector<float> y(c.rows * c.n, before);
    DeviceBuffer device_y = on_device(y.data(), y.size() * 4);
    const Status status = gemm_->run({.linear = &linear_, .x = device_x_.as<void>(), .rows = c.rows,
                                      .y = device_y.as<void>(), .y_dtype = DType::f32, .y_stride = c.n,
                                      .accumulate = before != 0},
                                     nullptr);
    EXPECT_TRUE(status.ok()) << status.message();
    return from_device<float>(device_y, y.size());
  }

  // Every 61st element: all of them would take the test's time.
  void expect_near(const std::vector<float>& y, const std::vector<float>& x, float before, double bound) {
    const Case& c = GetParam();
    for (int64_t i = 0; i < c.rows * c.n; i += 61) {
      const Expected e = expected(x, i / c.n, i % c.n);
      ASSERT_NEAR(y[i], e.sum + before, e.magnitude * bound + std::fabs(before) * 1e-6)
          << "row " << i / c.n << " column " << i % c.n << " of " << c;
    }
  }

  std::vector<uint16_t> x_;
  std::vector<uint8_t> codes_;
  std::vector<float> scales_;
  int64_t stride_ = 1;
  DeviceBuffer device_x_, device_codes_, device_scales_;
  GpuLinear linear_;
  std::unique_ptr<GpuGemm> gemm_;
};

TEST_P(GpuFp8GemmTest, FewRowsStreamAndRepeatBitForBit) {
  if (GetParam().rows > kSmallGemmFp8Rows) GTEST_SKIP() << "not its shape";
  const std::vector<float> first = run(Fp8Path::small, 3.0f);
  expect_near(first, given_x(), 3.0f, 0x1p-17);
  for (int repeat = 0; repeat < 4; ++repeat) ASSERT_EQ(run(Fp8Path::small, 3.0f), first) << repeat;
}

TEST_P(GpuFp8GemmTest, RoundedRowsStream) {
  if (!streams()) GTEST_SKIP() << "not its shape";
  const std::vector<float> y = run(Fp8Path::stream);
  expect_near(y, rounded_x(), 0, sum_bound());
  expect_near(y, given_x(), 0, 0x1p-4);
  for (int repeat = 0; repeat < 4; ++repeat) ASSERT_EQ(run(Fp8Path::stream), y) << repeat;
}

TEST_P(GpuFp8GemmTest, RoundedRowsStreamAsPartialSums) {
  if (!streams()) GTEST_SKIP() << "not its shape";
  const Case& c = GetParam();
  const int64_t count = c.rows * c.n;
  const std::vector<float> nans(kMostPartials * count, NAN);
  const DeviceBuffer partials = on_device(nans);
  GemmCall call = {.linear = &linear_, .x = device_x_.as<void>(), .rows = c.rows, .y_dtype = DType::f32, .y_stride = c.n};
  const int splits = gemm_->partial_splits(call);
  ASSERT_GE(splits, 1);
  call.partials = partials.as<float>();
  const Status status = gemm_->run(call, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  const auto sums = from_device<float>(partials, splits * count);
  std::vector<float> y(count);
  for (size_t i = 0; i < sums.size(); ++i) y[i % count] += sums[i];
  expect_near(y, rounded_x(), 0, sum_bound());
}

TEST_P(GpuFp8GemmTest, RoundedRowsStreamIntoAnActivation) {
  if (!streams() || GetParam().rows > kStreamGemmRows || GetParam().scaling == Fp8Scaling::block) GTEST_SKIP() << "not its shape";
  const Case& c = GetParam();
  const int64_t columns = c.n / 2;
  linear_.glu = GluActivation::silu;
  const DeviceBuffer device_y = on_device(std::vector<uint16_t>(c.rows * columns, 0xffff));
  const GemmCall call = {.linear = &linear_, .x = device_x_.as<void>(), .rows = c.rows, .y = device_y.as<void>(),
                         .y_dtype = c.dtype, .y_stride = columns, .fused_glu = true};
  ASSERT_TRUE(gemm_->takes_fused(call));
  const Status status = gemm_->run(call, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  const auto y = from_device<uint16_t>(device_y, c.rows * columns);
  const std::vector<float> x = rounded_x();
  for (int64_t i = 0; i < c.rows * columns; i += 61) {
    const Expected gate = expected(x, i / columns, i % columns), up = expected(x, i / columns, columns + i % columns);
    const double activated = gate.sum / (1 + std::exp(-gate.sum)), wanted = activated * up.sum;
    const double gate_error = 1.1 * gate.magnitude * sum_bound(), up_error = up.magnitude * sum_bound();
    ASSERT_NEAR(wide(y[i], c.dtype), wanted,
                gate_error * std::fabs(up.sum) + (std::fabs(activated) + gate_error) * up_error + std::fabs(wanted) * 0x1p-7)
        << "row " << i / columns << " column " << i % columns << " of " << c;
  }
}

TEST_P(GpuFp8GemmTest, TensorCoresMultiplyTheRoundedRows) {
  if (GetParam().scaling == Fp8Scaling::block && GetParam().rows % 4 != 0) GTEST_SKIP() << "not its shape";
  const std::vector<float> y = run(Fp8Path::tensor);
  if (gemm_->fp8_refusals() > 0) GTEST_SKIP() << "cuBLASLt has no algorithm for " << GetParam();
  expect_near(y, rounded_x(), 0, sum_bound());
  expect_near(y, given_x(), 0, 0x1p-4);
}

TEST_P(GpuFp8GemmTest, WidenedWeightsGiveTheResult) {
  expect_near(run(Fp8Path::widen, 2.0f), given_x(), 2.0f, GetParam().dtype == DType::f16 ? 0x1p-11 : 0x1p-8);
}

TEST_P(GpuFp8GemmTest, EveryCandidateWritesTheOutputInTheServingType) {
  const Case& c = GetParam();
  const std::vector<float> x = given_x();
  gemm_->start_tuning();
  for (int candidate = 0; candidate < 6; ++candidate) {
    std::vector<uint16_t> y(c.rows * c.n, 0xffff);
    DeviceBuffer device_y = on_device(y.data(), y.size() * 2);
    const Status status = gemm_->run({.linear = &linear_, .x = device_x_.as<void>(), .rows = c.rows,
                                      .y = device_y.as<void>(), .y_dtype = c.dtype, .y_stride = c.n},
                                     nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    y = from_device<uint16_t>(device_y, y.size());
    std::vector<float> values(y.size());
    for (size_t i = 0; i < y.size(); ++i) values[i] = wide(y[i], c.dtype);
    expect_near(values, x, 0, 0x1p-4);
  }
}

TEST_P(GpuFp8GemmTest, BatchInvariantRowsKeepTheirBits) {
  const Case& c = GetParam();
  gemm_->set_batch_invariant();
  const std::vector<float> all = run(Fp8Path::automatic);
  expect_near(all, given_x(), 0, 0x1p-8);
  std::vector<float> alone(c.n);
  DeviceBuffer device_y = on_device(alone.data(), alone.size() * 4);
  const int64_t row = c.rows - 1;
  const Status status = gemm_->run({.linear = &linear_, .x = device_x_.as<uint16_t>() + row * c.k, .rows = 1,
                                    .y = device_y.as<void>(), .y_dtype = DType::f32, .y_stride = c.n},
                                   nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  alone = from_device<float>(device_y, c.n);
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + row * c.n));
}

TEST_P(GpuFp8GemmTest, RowsAreRoundedAsOnTheHost) {
  const Case& c = GetParam();
  const int64_t across = c.scaling == Fp8Scaling::row ? 1 : (c.k + 127) / 128;
  DeviceBuffer codes = DeviceBuffer::allocate(c.rows * c.k, "a test").value();
  DeviceBuffer scales = DeviceBuffer::allocate(c.rows * across * 4, "a test").value();
  quantize_rows({.x = device_x_.as<void>(), .dtype = c.dtype, .rows = c.rows, .cols = c.k, .scaling = c.scaling,
                 .codes = codes.as<uint8_t>(), .scales = scales.as<float>()}, nullptr);
  const auto got_codes = from_device<uint8_t>(codes, c.rows * c.k);
  const auto got_scales = from_device<float>(scales, c.rows * across);
  const std::vector<float> rounded = rounded_x();
  for (int64_t i = 0; i < c.rows * c.k; ++i) {
    const int64_t block = c.scaling == Fp8Scaling::row ? 0 : i % c.k / 128;
    ASSERT_EQ(e4m3_to_f32(got_codes[i]) * got_scales[block * c.rows + i / c.k], rounded[i]) << i / c.k << " " << i % c.k;
  }
}

struct Size {
  int64_t rows, n, k;
};
constexpr Size kSizes[] = {
    {1, 128, 128},
    {1, 4096, 4096},
    {3, 384, 1024},
    {8, 6144, 4096},
    {8, 28672, 512},
    {9, 6144, 4096},
    {16, 1024, 14336},
    {16, 48, 144},
    {17, 256, 384},
    {24, 1024, 1024},
    {64, 6144, 1024},
    {40, 1056, 2064},
    {64, 640, 8192},
    {100, 1056, 2064},
    {128, 2688, 1024},
    {256, 512, 4096},
    {1000, 512, 384},
    {1100, 128, 784},
    {1104, 128, 1808},
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const auto& [rows, n, k] : kSizes) {
    for (Fp8Scaling scaling : {Fp8Scaling::row, Fp8Scaling::block}) {
      for (DType dtype : {DType::bf16, DType::f16}) out.push_back({rows, n, k, scaling, dtype});
    }
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuFp8GemmTest, testing::ValuesIn(cases()));

// Rows of experts go to all of their places as to one, few rows and so many that a warp has a row, and none of it twice.
TEST(GpuFp8Gemm, RowsGoToAllOfTheirPlaces) {
  if (!usable_gpu()) GTEST_SKIP() << "no GPU of compute capability 9.0";
  constexpr int kCopies = 3;
  for (const auto& [rows, n, cols] : {Size{37, 0, 528}, {1100, 0, 528}, {1100, 0, 2048}, {1100, 0, 2064}}) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> x(rows * cols);
    for (uint16_t& value : x) value = f32_to_bf16(normal(random));
    std::vector<int32_t> place_of(rows * kCopies);
    for (size_t i = 0; i < place_of.size(); ++i) place_of[i] = static_cast<int32_t>(i);
    std::shuffle(place_of.begin(), place_of.end(), random);
    const DeviceBuffer device_x = on_device(x), device_places = on_device(place_of);
    const auto code = [&](const int32_t* places, int copies) {
      const DeviceBuffer codes = DeviceBuffer::allocate(rows * copies * cols, "a test").value();
      const DeviceBuffer scales = DeviceBuffer::allocate(rows * copies * 4, "a test").value();
      CodeRowsCall call = {.x = device_x.as<void>(), .rows = rows, .cols = cols, .place_of = places, .copies = copies};
      call.codes = codes.as<uint8_t>();
      call.scales = scales.as<float>();
      code_rows(call, nullptr);
      return std::pair(from_device<uint8_t>(codes, rows * copies * cols), from_device<float>(scales, rows * copies));
    };
    const auto [codes, scales] = code(nullptr, 1);
    const auto [placed_codes, placed_scales] = code(device_places.as<int32_t>(), kCopies);
    for (size_t i = 0; i < place_of.size(); ++i) {
      const auto row = codes.begin() + static_cast<int64_t>(i) / kCopies * cols, placed = placed_codes.begin() + place_of[i] * cols;
      ASSERT_TRUE(std::equal(row, row + cols, placed)) << rows << "x" << cols << ", copy " << i;
      ASSERT_EQ(placed_scales[place_of[i]], scales[i / kCopies]);
    }
  }
}

// Whole matrices wider than the memory for widened weights go in pieces.
TEST(GpuFp8Gemm, WidensInPieces) {
  if (!usable_gpu()) GTEST_SKIP() << "no GPU of compute capability 9.0";
  const int64_t n = 40000 / 16 * 16, k = 1024, rows = 5;
  std::vector<uint8_t> codes(n * k);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(0x30 + i / k % 16);  // by the row alone
  const std::vector<float> scales(n, 0.5f);
  const std::vector<uint16_t> x(rows * k, f32_to_bf16(1));
  const DeviceBuffer device_codes = on_device(codes.data(), codes.size());
  const DeviceBuffer device_scales = on_device(scales.data(), scales.size() * 4);
  const DeviceBuffer device_x = on_device(x.data(), x.size() * 2);
  const DeviceBuffer device_y = DeviceBuffer::allocate(rows * n * 4, "a test").value();
  const GpuLinear linear = {.weight = device_codes.as<void>(), .dtype = DType::fp8_e4m3, .in_features = k,
                            .out_features = n, .scales = device_scales.as<float>()};
  auto gemm = GpuGemm::create();
  ASSERT_TRUE(gemm.ok() && (*gemm)->reserve_fp8(rows, k).ok());
  (*gemm)->set_fp8_path(Fp8Path::widen);
  const Status status = (*gemm)->run({.linear = &linear, .x = device_x.as<void>(), .rows = rows, .y = device_y.as<void>(),
                                      .y_dtype = DType::f32, .y_stride = n}, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  const auto y = from_device<float>(device_y, rows * n);
  for (int64_t i = 0; i < rows * n; ++i) {
    ASSERT_NEAR(y[i], e4m3_to_f32(codes[i % n * k]) * 0.5f * k, 1e-3f) << "row " << i / n << " column " << i % n;
  }
}

}  // namespace
}  // namespace warpweave::gpu
