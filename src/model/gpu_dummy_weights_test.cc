// Made-up matrices have the same bits whether the host or the GPU makes them. Skipped without a GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string_view>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/cuda/memory.h"
#include "model/fp8_weights.h"
#include "model/weight_source.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/fp8.h"
#include "ops/cuda/gpu_ops.h"

namespace warpweave {
namespace {

class GpuDummyWeightsTest : public testing::TestWithParam<DType> {};

TEST_P(GpuDummyWeightsTest, TheGpuMakesTheHostsBits) {
  if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  const auto source = make_dummy_weights(GetParam(), /*seed=*/7);
  for (const auto& [rows, columns] : {std::pair{1, 1}, {3, 5}, {511, 1023}, {4096, 520}}) {
    const int64_t shape[] = {rows, columns};
    const auto expected = source->find("model.layers.3.mlp.down_proj.weight", shape);
    const auto rule = source->random("model.layers.3.mlp.down_proj.weight", shape);
    ASSERT_TRUE(expected.ok() && rule.has_value());
    const size_t size_bytes = expected->size_bytes();
    const auto made = DeviceBuffer::allocate(size_bytes + 64, "a test");
    ASSERT_TRUE(made.ok()) << made.status().message();
    ASSERT_EQ(cudaMemset(made->as<void>(), 0xee, size_bytes + 64), cudaSuccess);
    gpu::fill_random(*rule, expected->elements(), GetParam(), made->as<void>(), nullptr);
    std::vector<unsigned char> got(size_bytes + 64);
    ASSERT_EQ(cudaMemcpy(got.data(), made->as<void>(), got.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(std::memcmp(got.data(), expected->data, size_bytes), 0) << rows << " x " << columns;
    EXPECT_EQ(got[size_bytes], 0xee) << "written beyond the matrix";
  }
}

// gpt-oss: an expert's matrix is stored transposed, gate's and up's columns in turns.
TEST_P(GpuDummyWeightsTest, TheGpuMakesTransposedExperts) {
  if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  constexpr int64_t kExperts = 3, kIn = 40, kOut = 26, kExpert = 2;
  const auto source = make_dummy_weights(GetParam(), /*seed=*/7);
  const int64_t shape[] = {kExperts, kIn, kOut};
  const auto all = source->find("model.layers.3.mlp.experts.gate_up_proj", shape);
  const auto rule = source->random("model.layers.3.mlp.experts.gate_up_proj", shape);
  ASSERT_TRUE(all.ok() && rule.has_value());
  const size_t element = all->size_bytes() / (kExperts * kIn * kOut), size_bytes = kIn * kOut / 2 * element;
  const auto made = DeviceBuffer::allocate(size_bytes, "a test");
  ASSERT_TRUE(made.ok()) << made.status().message();
  for (const int64_t first : {0, 1}) {
    gpu::fill_random(rule->transposed(kExpert * kIn, kIn, first, 2, kOut), kIn * kOut / 2, GetParam(), made->as<void>(), nullptr);
    std::vector<unsigned char> got(size_bytes);
    ASSERT_EQ(cudaMemcpy(got.data(), made->as<void>(), size_bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int64_t row = 0; row < kOut / 2; ++row) {
      for (int64_t col = 0; col < kIn; ++col) {
        const int64_t at = (kExpert * kIn + col) * kOut + first + 2 * row;
        ASSERT_EQ(std::memcmp(got.data() + (row * kIn + col) * element, static_cast<const std::byte*>(all->data) + at * element, element),
                  0) << first << ": " << row << ", " << col;
      }
    }
  }
}

// Weights that --quantization fp8 rounds: codes and scales, of rows and of blocks, alone and in turns with another matrix.
TEST_P(GpuDummyWeightsTest, TheGpuRoundsAsTheHostDoes) {
  if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  constexpr std::string_view kName = "model.layers.3.mlp.experts.5.up_proj.weight";
  for (const bool blocks : {false, true}) {
    const Fp8Config config = {.block_rows = blocks ? 128 : 0, .block_cols = blocks ? 128 : 0};
    const auto source = quantize_weights_fp8(make_dummy_weights(GetParam(), /*seed=*/7), config);
    for (const auto& [rows, cols] : {std::pair{16, 272}, {128, 384}, {384, 144}, {256, 2048}}) {
      const int64_t shape[] = {rows, cols};
      const auto expected = source->find_fp8(kName, shape);
      const auto rule = source->random_fp8(kName, shape);
      ASSERT_TRUE(expected.ok() && rule.has_value());
      gpu::RandomCodes call = {rule->matrix, rule->dtype, rows, cols, blocks ? gpu::Fp8Scaling::block : gpu::Fp8Scaling::row};
      const int64_t scales = gpu::fp8_scales(call.scaling, rows, cols), stride = blocks ? gpu::fp8_scale_stride(cols) : 1;
      const auto codes = DeviceBuffer::allocate(2 * rows * cols, "a test"), of_blocks = DeviceBuffer::allocate(scales * 4, "a test");
      ASSERT_TRUE(codes.ok() && of_blocks.ok());
      call.codes = codes->as<uint8_t>();
      call.scales = of_blocks->as<float>();
      for (const int turn : {gpu::kNoTurn, 0, 1}) {
        call.turn = turn;
        gpu::fill_random_codes(call, nullptr);
        std::vector<unsigned char> got(2 * rows * cols);
        std::vector<float> got_scales(scales);
        ASSERT_EQ(cudaMemcpy(got.data(), call.codes, got.size(), cudaMemcpyDeviceToHost), cudaSuccess);
        ASSERT_EQ(cudaMemcpy(got_scales.data(), call.scales, scales * 4, cudaMemcpyDeviceToHost), cudaSuccess);
        for (int64_t row = 0; row < rows; ++row) {
          const int64_t at = turn == gpu::kNoTurn ? row : (row / gpu::kGluTurn * 2 + turn) * gpu::kGluTurn + row % gpu::kGluTurn;
          ASSERT_EQ(std::memcmp(got.data() + at * cols, static_cast<const std::byte*>(expected->codes.data) + row * cols, cols), 0)
              << rows << " x " << cols << ", turn " << turn << ", row " << row;
          for (int64_t col = 0; col < cols; ++col) {
            const int64_t block = blocks ? row / 128 * stride + col / 128 : row;
            ASSERT_EQ(got_scales[block], expected->scales.at(row, col)) << row << ", " << col;
          }
        }
      }
      source->release(expected->codes);
    }
  }
}

TEST(GpuDummyWeights, NormsHaveNoRule) {
  const int64_t shape[] = {64};
  EXPECT_FALSE(make_dummy_weights(DType::bf16, 7)->random("model.norm.weight", shape).has_value());
}

INSTANTIATE_TEST_SUITE_P(Types, GpuDummyWeightsTest, testing::Values(DType::bf16, DType::f16, DType::f32));

}  // namespace
}  // namespace warpweave
