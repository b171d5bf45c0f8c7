// What copy_now() and fill_now() return from is done for streams that wait for no other. Skipped without a GPU.
#include "device/cuda/copy.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"

namespace warpweave {
namespace {

constexpr size_t kBytes = 64;

class CopyNow : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto gpu = probe_cuda_device(); !gpu.ok()) GTEST_SKIP() << gpu.status().message();
    stream_ = create_stream().value();
    from_ = DeviceBuffer::allocate(kBytes, "a test").value();
    to_ = DeviceBuffer::allocate(kBytes, "a test").value();
    seen_ = PinnedBuffer::allocate(kBytes, "a test").value();
    ASSERT_EQ(cudaMemset(from_.as<void>(), 0x55, kBytes), cudaSuccess);
    ASSERT_EQ(cudaMemset(to_.as<void>(), 0, kBytes), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    // The default stream waits for streams of this kind, and so is busy for a while.
    ASSERT_EQ(cudaStreamCreate(busy_.out()), cudaSuccess);
    const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
    ASSERT_EQ(cudaLaunchHostFunc(busy_.get(), sleep, nullptr), cudaSuccess);
  }

  // What a step's stream reads of `to_` now.
  std::vector<char> read() {
    EXPECT_TRUE(copy_async(seen_.as<void>(), to_.as<void>(), kBytes, stream_.get(), "a test").ok());
    EXPECT_TRUE(wait_for_stream(stream_.get(), "a test").ok());
    return {seen_.as<char>(), seen_.as<char>() + kBytes};
  }

  CudaStream stream_, busy_;
  DeviceBuffer from_, to_;
  PinnedBuffer seen_;
};

TEST_F(CopyNow, FillsAreDone) {
  ASSERT_TRUE(fill_now(to_.as<void>(), 0x55, kBytes, "a test").ok());
  EXPECT_EQ(read(), std::vector<char>(kBytes, 0x55));
}

TEST_F(CopyNow, CopiesWithinTheGpuAreDone) {
  ASSERT_TRUE(copy_now(to_.as<void>(), from_.as<void>(), kBytes, "a test").ok());
  EXPECT_EQ(read(), std::vector<char>(kBytes, 0x55));
}

TEST_F(CopyNow, CopiesOfRowsWithinTheGpuAreDone) {
  ASSERT_TRUE(copy_rows_now({to_.as<void>(), 32, from_.as<void>(), 32, 32, 2}, "a test").ok());
  EXPECT_EQ(read(), std::vector<char>(kBytes, 0x55));
}

}  // namespace
}  // namespace warpweave
