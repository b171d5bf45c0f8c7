// Made-up matrices have the same bits whether the host or the GPU makes them. Skipped without a GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/cuda/memory.h"
#include "model/weight_source.h"
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

TEST(GpuDummyWeights, NormsHaveNoRule) {
  const int64_t shape[] = {64};
  EXPECT_FALSE(make_dummy_weights(DType::bf16, 7)->random("model.norm.weight", shape).has_value());
}

INSTANTIATE_TEST_SUITE_P(Types, GpuDummyWeightsTest, testing::Values(DType::bf16, DType::f16, DType::f32));

}  // namespace
}  // namespace warpweave
