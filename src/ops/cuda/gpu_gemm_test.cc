// The GPU's GEMMs against sums in f64, at full and ragged shapes. Skipped without a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/float16.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/stream.h"
#include "ops/cuda/cluster_gemm.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/small_gemm.h"
#include "ops/cuda/stream_gemm.h"
#include "ops/cuda/testing/device_values.h"
#include "ops/cuda/tile_gemm.h"
#include "ops/cuda/wide_gemm.h"

namespace warpweave::gpu {
namespace {

std::vector<uint16_t> random_bf16(size_t count, float scale, std::mt19937& random) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<uint16_t> out(count);
  for (uint16_t& x : out) x = f32_to_bf16(normal(random));
  return out;
}

struct Shape {
  int64_t rows, n, k;
};

class GpuGemmTest : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
    const auto [rows, n, k] = GetParam();
    std::mt19937 random(3);
    x_ = random_bf16(rows * k, 1, random);
    w_ = random_bf16(n * k, 1 / std::sqrt(static_cast<float>(k)), random);
    device_x_ = on_device(x_.data(), x_.size() * 2);
    device_w_ = on_device(w_.data(), w_.size() * 2);
    linear_.weight = device_w_.as<void>();
    linear_.in_features = k;
    linear_.out_features = n;
  }

  // Every 7th element: a sum over all of them would take the test's time.
  void expect_gemm(const std::vector<float>& y, float before, float tolerance) const {
    const auto [rows, n, k] = GetParam();
    for (int64_t i = 0; i < rows * n; i += 7) {
      double sum = before;
      for (int64_t d = 0; d < k; ++d) sum += double{bf16_to_f32(x_[i / n * k + d])} * bf16_to_f32(w_[i % n * k + d]);
      ASSERT_NEAR(y[i], sum, tolerance) << "row " << i / n << " column " << i % n;
    }
  }

  // What `run` leaves as partial sums adds up to the GEMM's result, and nothing is written past them.
  template <typename Run>
  void expect_sums(int splits, const Run& run) const {
    const auto [rows, n, k] = GetParam();
    const size_t each = rows * n;
    std::vector<float> sums((splits + 1) * each, NAN);
    DeviceBuffer device_sums = on_device(sums.data(), sums.size() * 4);
    run(device_sums.as<float>());
    ASSERT_EQ(cudaMemcpy(sums.data(), device_sums.as<void>(), sums.size() * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    std::vector<float> y(each);
    for (size_t i = 0; i < each; ++i) {
      for (int split = 0; split < splits; ++split) y[i] += sums[split * each + i];
      ASSERT_TRUE(std::isnan(sums[splits * each + i])) << "past the end, " << i;
    }
    expect_gemm(y, 0, 2e-4f);
  }

  void expect_glu(const std::vector<uint16_t>& y) const {
    const auto [rows, n, k] = GetParam();
    const int64_t cols = n / 2;
    for (int64_t i = 0; i < rows * cols; i += 7) {
      double gate = 0, up = 0;
      for (int64_t d = 0; d < k; ++d) {
        const double x = bf16_to_f32(x_[i / cols * k + d]);
        gate += x * bf16_to_f32(w_[i % cols * k + d]);
        up += x * bf16_to_f32(w_[(cols + i % cols) * k + d]);
      }
      const double expected = gate / (1 + std::exp(-gate)) * up;
      ASSERT_NEAR(bf16_to_f32(y[i]), expected, 1e-3 + 0.01 * std::abs(expected)) << "element " << i;
    }
  }

  std::vector<uint16_t> x_, w_;
  DeviceBuffer device_x_, device_w_;
  GpuLinear linear_;
};

TEST_P(GpuGemmTest, SmallGemmAddsTheResultAndRepeatsBitForBit) {
  const auto [rows, n, k] = GetParam();
  std::vector<float> first;
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<float> y(rows * n, 3.0f);
    DeviceBuffer device_y = on_device(y.data(), y.size() * 4);
    const GemmCall call = {.linear = &linear_, .x = device_x_.as<void>(), .rows = rows, .y = device_y.as<void>(),
                           .y_dtype = DType::f32, .y_stride = n, .accumulate = true};
    if (!small_gemm_takes(call)) GTEST_SKIP() << "not its shape";
    small_gemm(call, nullptr);
    ASSERT_EQ(cudaMemcpy(y.data(), device_y.as<void>(), y.size() * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    if (repeat == 0) {
      expect_gemm(y, 3.0f, 2e-4f);
      first = y;
    }
    ASSERT_EQ(y, first) << "repeat " << repeat;
  }
}

// A sum and its activation, against sums in f64.
TEST_P(GpuGemmTest, SmallGemmAppliesTheGlu) {
  const auto [rows, n, k] = GetParam();
  linear_.glu = GluActivation::silu;
  std::vector<uint16_t> y(rows * n / 2, 0xffff);
  DeviceBuffer device_y = on_device(y.data(), y.size() * 2);
  const GemmCall call = {.linear = &linear_, .x = device_x_.as<void>(), .rows = rows, .y = device_y.as<void>(),
                         .y_dtype = DType::bf16, .y_stride = n / 2, .fused_glu = true};
  if (!small_gemm_takes(call)) GTEST_SKIP() << "not its shape";
  small_gemm(call, nullptr);
  ASSERT_EQ(cudaMemcpy(y.data(), device_y.as<void>(), y.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
  expect_glu(y);
}

// The kernel rounds x * weight, not the normed x: the reference does the same in f64.
TEST_P(GpuGemmTest, SmallGemmNormsItsInput) {
  const auto [rows, n, k] = GetParam();
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> x(rows * k), weight(k);
  for (float& v : x) v = normal(random);
  for (float& v : weight) v = 1 + 0.1f * normal(random);
  DeviceBuffer device_f32 = on_device(x.data(), x.size() * 4), device_weight = on_device(weight.data(), weight.size() * 4);
  for (const bool glu : {false, true}) {
    linear_.glu = glu ? GluActivation::silu : GluActivation::none;
    const int64_t cols = glu ? n / 2 : n;
    std::vector<uint16_t> y(rows * cols, 0xffff);
    DeviceBuffer device_y = on_device(y.data(), y.size() * 2);
    const GemmCall call = {.linear = &linear_, .rows = rows, .y = device_y.as<void>(), .y_dtype = DType::bf16,
                           .y_stride = cols, .fused_glu = glu,
                           .norm = {device_f32.as<float>(), device_weight.as<float>(), 0.25f, 1e-5f}};
    if (!small_gemm_takes(call)) GTEST_SKIP() << "not its shape";
    small_gemm(call, nullptr);
    ASSERT_EQ(cudaMemcpy(y.data(), device_y.as<void>(), y.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int64_t row = 0; row < rows; ++row) {
      double squares = 0;
      for (int64_t d = 0; d < k; ++d) squares += double{x[row * k + d]} * x[row * k + d];
      const double scale = 1 / std::sqrt(squares / static_cast<double>(k) + 1e-5);
      const auto product = [&](int64_t column) {
        double sum = 0;
        for (int64_t d = 0; d < k; ++d) {
          sum += scale * bf16_to_f32(f32_to_bf16(x[row * k + d] * (weight[d] + 0.25f))) * bf16_to_f32(w_[column * k + d]);
        }
        return sum;
      };
      for (int64_t column = row % 7; column < cols; column += 7) {
        const double gate = product(column);
        const double expected = glu ? gate / (1 + std::exp(-gate)) * product(cols + column) : gate;
        ASSERT_NEAR(bf16_to_f32(y[row * cols + column]), expected, 2e-3 + 0.01 * std::abs(expected))
            << "row " << row << " column " << column;
      }
    }
  }
}

TEST_P(GpuGemmTest, StreamGemmLeavesSumsThatAddUpToTheResult) {
  const auto [rows, n, k] = GetParam();
  const GemmCall call = {.linear = &linear_, .x = device_x_.as<void>(), .rows = rows, .y_dtype = DType::f32, .y_stride = n};
  if (!stream_gemm_takes(call)) GTEST_SKIP() << "not its shape";
  for (const StreamPlan& plan : {StreamPlan{128, 1, 1, 1}, StreamPlan{128, 4, 3, 9}, StreamPlan{192, 3, 2, 3}, stream_plan(call)}) {
    expect_sums(plan.splits, [&](float* sums) { stream_gemm(call, plan, sums, nullptr); });
  }
}

TEST_P(GpuGemmTest, StreamGemmAppliesTheGlu) {
  const auto [rows, n, k] = GetParam();
  linear_.glu = GluActivation::silu;
  std::vector<uint16_t> y(rows * n / 2, 0xffff);
  DeviceBuffer device_y = on_device(y.data(), y.size() * 2);
  const GemmCall call = {.linear = &linear_, .x = device_x_.as<void>(), .rows = rows, .y = device_y.as<void>(),
                         .y_dtype = DType::bf16, .y_stride = n / 2, .fused_glu = true};
  if (!stream_gemm_takes(call)) GTEST_SKIP() << "not its shape";
  stream_gemm(call, stream_plan(call), nullptr, nullptr);
  ASSERT_EQ(cudaMemcpy(y.data(), device_y.as<void>(), y.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
  expect_glu(y);
}

constexpr TilePlan kTilePlans[] = {{96, 1, 1, 1}, {96, 3, 2, 5}, {128, 4, 3, 7}, {128, 2, 2, 4},
                                   {192, 2, 2, 4}, {192, 1, 1, 3}, {256, 3, 2, 4}, {256, 4, 1, 3}};

TEST_P(GpuGemmTest, TileGemmLeavesSumsThatAddUpToTheResult) {
  const auto [rows, n, k] = GetParam();
  const GemmCall call = {.linear = &linear_, .x = device_x_.as<void>(), .rows = rows, .y_dtype = DType::f32, .y_stride = n};
  if (!tile_gemm_takes(call)) GTEST_SKIP() << "not its shape";
  std::vector<TilePlan> plans(std::begin(kTilePlans), std::end(kTilePlans));
  plans.push_back(tile_plan(call));
  for (const TilePlan& plan : plans) {
    SCOPED_TRACE(plan.tile * 10 + plan.splits);
    expect_sums(plan.splits, [&](float* sums) { tile_gemm(call, plan, sums, nullptr); });
  }
}

TEST_P(GpuGemmTest, TileGemmAppliesTheGlu) {
  const auto [rows, n, k] = GetParam();
  linear_.glu = GluActivation::silu;
  std::vector<uint16_t> first;
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::vector<uint16_t> y(rows * n / 2, 0xffff);
    DeviceBuffer device_y = on_device(y.data(), y.size() * 2);
    const GemmCall call = {.linear = &linear_, .x = device_x_.as<void>(), .rows = rows, .y = device_y.as<void>(),
                           .y_dtype = DType::bf16, .y_stride = n / 2, .fused_glu = true};
    if (!tile_gemm_takes(call)) GTEST_SKIP() << "not its shape";
    tile_gemm(call, tile_plan(call), nullptr, nullptr);
    ASSERT_EQ(cudaMemcpy(y.data(), device_y.as<void>(), y.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
    if (repeat == 0) {
      expect_glu(y);
      first = y;
    }
    ASSERT_EQ(y, first) << "repeat " << repeat;
  }
}

TEST_P(GpuGemmTest, TileGemmWritesResultsOfF16) {
  const auto [rows, n, k] = GetParam();
  const auto to_f16 = [](std::vector<uint16_t>& values) {
    std::vector<uint16_t> out(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      out[i] = f32_to_f16(bf16_to_f32(values[i]));
      values[i] = f32_to_bf16(f16_to_f32(out[i]));  // halves that are small have fewer bits, never more
    }
    return out;
  };
  const std::vector<uint16_t> x = to_f16(x_), w = to_f16(w_);
  DeviceBuffer device_x = on_device(x.data(), x.size() * 2), device_w = on_device(w.data(), w.size() * 2);
  linear_.weight = device_w.as<void>();
  linear_.dtype = DType::f16;
  std::vector<uint16_t> y(rows * n, 0xffff);
  DeviceBuffer device_y = on_device(y.data(), y.size() * 2);
  const GemmCall call = {.linear = &linear_, .x = device_x.as<void>(), .rows = rows, .y = device_y.as<void>(),
                         .y_dtype = DType::f16, .y_stride = n};
  if (!tile_gemm_takes(call)) GTEST_SKIP() << "not its shape";
  tile_gemm(call, {192, 1, 2, 4}, nullptr, nullptr);
  ASSERT_EQ(cudaMemcpy(y.data(), device_y.as<void>(), y.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
  std::vector<float> wide(y.size());
  for (size_t i = 0; i < y.size(); ++i) wide[i] = f16_to_f32(y[i]);
  expect_gemm(wide, 0, 0.005f);
}

// Rows end with memory that is not of y.
TEST_P(GpuGemmTest, ClusterGemmAddsTheResultByEveryPlan) {
  const auto [rows, n, k] = GetParam();
  const int64_t stride = n + 8;
  DeviceBuffer device_y = DeviceBuffer::allocate(rows * stride * 4, "a test").value();
  const GemmCall call = {.linear = &linear_, .x = device_x_.as<void>(), .rows = rows, .y = device_y.as<void>(),
                         .y_dtype = DType::f32, .y_stride = stride, .accumulate = true};
  if (!cluster_gemm_takes(call)) GTEST_SKIP() << "not its shape";
  const std::vector<float> before(rows * stride, 3.0f);
  for (const ClusterPlan& plan : all_cluster_plans(call)) {
    SCOPED_TRACE(plan.tile * 10 + plan.splits);
    std::vector<float> y = before, dense;
    ASSERT_EQ(cudaMemcpy(device_y.as<void>(), y.data(), y.size() * 4, cudaMemcpyHostToDevice), cudaSuccess);
    cluster_gemm(call, plan, nullptr);
    ASSERT_EQ(cudaMemcpy(y.data(), device_y.as<void>(), y.size() * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int64_t row = 0; row < rows; ++row) {
      dense.insert(dense.end(), y.begin() + row * stride, y.begin() + row * stride + n);
      for (int64_t i = n; i < stride; ++i) ASSERT_EQ(y[row * stride + i], 3.0f) << "past the end of row " << row;
    }
    expect_gemm(dense, 3.0f, 2e-4f);
  }
}

TEST_P(GpuGemmTest, ClusterGemmWritesResultsOfBf16) {
  const auto [rows, n, k] = GetParam();
  std::vector<uint16_t> y(rows * n, 0xffff);
  DeviceBuffer device_y = on_device(y.data(), y.size() * 2);
  const GemmCall call = {.linear = &linear_, .x = device_x_.as<void>(), .rows = rows, .y = device_y.as<void>(),
                         .y_dtype = DType::bf16, .y_stride = n};
  if (!cluster_gemm_takes(call)) GTEST_SKIP() << "not its shape";
  cluster_gemm(call, cluster_plan(call), nullptr);
  ASSERT_EQ(cudaMemcpy(y.data(), device_y.as<void>(), y.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
  std::vector<float> wide(y.size());
  for (size_t i = 0; i < y.size(); ++i) wide[i] = bf16_to_f32(y[i]);
  expect_gemm(wide, 0, 0.04f);
}

// Rows end with memory that is not of y; sums come out the same whichever tile makes them.
TEST_P(GpuGemmTest, WideGemmAddsTheResultWithTheSameBitsFromEveryTile) {
  const auto [rows, n, k] = GetParam();
  const int64_t stride = n + 8;
  DeviceBuffer device_y = DeviceBuffer::allocate(rows * stride * 4, "a test").value();
  const GemmCall call = {.linear = &linear_, .x = device_x_.as<void>(), .rows = rows, .y = device_y.as<void>(),
                         .y_dtype = DType::f32, .y_stride = stride, .accumulate = true};
  if (rows <= 16 || !wide_gemm_takes(call)) GTEST_SKIP() << "not its shape";
  const std::vector<float> before(rows * stride, 3.0f);
  std::vector<float> first;
  for (const WidePlan& plan : all_wide_plans(call)) {
    std::vector<float> y = before;
    ASSERT_EQ(cudaMemcpy(device_y.as<void>(), y.data(), y.size() * 4, cudaMemcpyHostToDevice), cudaSuccess);
    wide_gemm(call, plan, nullptr);
    ASSERT_EQ(cudaMemcpy(y.data(), device_y.as<void>(), y.size() * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    if (first.empty()) {
      std::vector<float> dense;
      for (int64_t row = 0; row < rows; ++row) {
        dense.insert(dense.end(), y.begin() + row * stride, y.begin() + row * stride + n);
        for (int64_t i = n; i < stride; ++i) ASSERT_EQ(y[row * stride + i], 3.0f) << "past the end of row " << row;
      }
      expect_gemm(dense, 3.0f, 2e-4f);
      first = y;
    }
    ASSERT_EQ(y, first) << plan.tile_columns << " columns, sharing " << static_cast<int>(plan.share);
  }
}

TEST_P(GpuGemmTest, WideGemmAppliesTheGlu) {
  const auto [rows, n, k] = GetParam();
  linear_.glu = GluActivation::silu;
  DeviceBuffer device_y = DeviceBuffer::allocate(rows * n, "a test").value();
  const GemmCall call = {.linear = &linear_, .x = device_x_.as<void>(), .rows = rows, .y = device_y.as<void>(),
                         .y_dtype = DType::bf16, .y_stride = n / 2, .fused_glu = true};
  if (rows <= 16 || !wide_gemm_takes(call)) GTEST_SKIP() << "not its shape";
  std::vector<uint16_t> first;
  for (const WidePlan& plan : all_wide_plans(call)) {
    std::vector<uint16_t> y(rows * n / 2, 0xffff);
    ASSERT_EQ(cudaMemcpy(device_y.as<void>(), y.data(), y.size() * 2, cudaMemcpyHostToDevice), cudaSuccess);
    wide_gemm(call, plan, nullptr);
    ASSERT_EQ(cudaMemcpy(y.data(), device_y.as<void>(), y.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
    if (first.empty()) {
      expect_glu(y);
      first = y;
    }
    ASSERT_EQ(y, first) << plan.tile_columns << " columns, sharing " << static_cast<int>(plan.share);
  }
}

TEST_P(GpuGemmTest, GpuGemmWritesTheResultWithAnyCandidate) {
  const auto [rows, n, k] = GetParam();
  auto gemm = GpuGemm::create();
  ASSERT_TRUE(gemm.ok()) << gemm.status().message();
  (*gemm)->start_tuning();
  for (int candidate = 0; candidate < 20; ++candidate) {
    std::vector<uint16_t> y(rows * n, 0xffff);
    DeviceBuffer device_y = on_device(y.data(), y.size() * 2);
    const Status status = (*gemm)->run({.linear = &linear_, .x = device_x_.as<void>(), .rows = rows,
                                        .y = device_y.as<void>(), .y_dtype = DType::bf16, .y_stride = n},
                                       nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(cudaMemcpy(y.data(), device_y.as<void>(), y.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
    std::vector<float> wide(y.size());
    for (size_t i = 0; i < y.size(); ++i) wide[i] = bf16_to_f32(y[i]);
    expect_gemm(wide, 0, 0.04f);
  }
}

TEST_P(GpuGemmTest, BatchInvariantRowsKeepTheirBits) {
  const auto [rows, n, k] = GetParam();
  auto gemm = GpuGemm::create();
  ASSERT_TRUE(gemm.ok()) << gemm.status().message();
  (*gemm)->set_batch_invariant();
  const auto multiply = [&](int64_t first, int64_t count) {
    std::vector<float> y(count * n, -1.0f);
    DeviceBuffer device_y = on_device(y.data(), y.size() * 4);
    const Status status = (*gemm)->run({.linear = &linear_, .x = device_x_.as<uint16_t>() + first * k, .rows = count,
                                        .y = device_y.as<void>(), .y_dtype = DType::f32, .y_stride = n},
                                       nullptr);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(cudaMemcpy(y.data(), device_y.as<void>(), y.size() * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    return y;
  };
  const std::vector<float> all = multiply(0, rows);
  expect_gemm(all, 0, 2e-4f);
  for (int64_t count : {1, 3, 7, 16, 40, 129}) {
    if (count > rows) break;
    for (int64_t first : {int64_t{0}, rows - count}) {
      const std::vector<float> part = multiply(first, count);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), all.begin() + first * n)) << count << " rows from " << first;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuGemmTest,
                         testing::Values(Shape{1, 128, 128}, Shape{1, 384, 1024}, Shape{2, 6144, 4096},
                                         Shape{1, 1024, 14336}, Shape{2, 28672, 256}, Shape{7, 1024, 384},
                                         Shape{8, 4096, 4096}, Shape{9, 6144, 4096}, Shape{16, 1024, 14336},
                                         Shape{17, 4096, 512}, Shape{32, 28672, 128}, Shape{24, 512, 4096},
                                         Shape{33, 512, 4096}, Shape{64, 6144, 1024}, Shape{64, 17024, 256},
                                         Shape{50, 1056, 640}, Shape{64, 4096, 1024}, Shape{5, 96, 64},
                                         Shape{1, 2048, 4096}, Shape{8, 2048, 4096}, Shape{1, 5120, 2048}, Shape{8, 5120, 2880},
                                         Shape{65, 1056, 640}, Shape{100, 6144, 1024}, Shape{128, 4096, 1024},
                                         Shape{129, 1056, 256}, Shape{200, 14336, 264}, Shape{255, 2048, 1024},
                                         Shape{256, 4096, 328}, Shape{256, 8960, 256}, Shape{300, 512, 384},
                                         Shape{1000, 512, 384}, Shape{257, 1056, 616}));

}  // namespace
}  // namespace warpweave::gpu
