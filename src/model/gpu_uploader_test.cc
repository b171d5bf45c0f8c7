// What arrives on the GPU is what was given, whatever its size; what may be released has been read. Skipped without
// a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>

#include "device/cuda/cuda_device.h"
#include "model/uploader.h"

namespace warpweave {
namespace {

std::vector<uint32_t> random_words(size_t count) {
  std::vector<uint32_t> out(count);
  std::mt19937 random(static_cast<unsigned>(count));
  for (uint32_t& word : out) word = random();
  return out;
}

std::vector<uint32_t> on_gpu(const DeviceBuffer& buffer) {
  std::vector<uint32_t> out(buffer.size_bytes() / sizeof(uint32_t));
  EXPECT_EQ(cudaMemcpy(out.data(), buffer.as<void>(), buffer.size_bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
  return out;
}

DeviceBuffer memory(size_t size_bytes) {
  auto buffer = DeviceBuffer::allocate(size_bytes, "a test");
  EXPECT_TRUE(buffer.ok()) << buffer.status().message();
  EXPECT_EQ(cudaMemset(buffer->as<void>(), 0xee, size_bytes), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // the uploader's streams do not wait for the memset
  return std::move(*buffer);
}

class UploaderTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
    auto created = Uploader::create(GetParam());
    ASSERT_TRUE(created.ok()) << created.status().message();
    uploader_ = std::move(*created);
  }
  std::unique_ptr<Uploader> uploader_;
};

// Words around the size of a piece, and more than the threads have room for; each is overwritten when it is released.
TEST_P(UploaderTest, BytesArriveBeforeTheyAreReleased) {
  std::vector<std::vector<uint32_t>> given, passed;
  std::vector<DeviceBuffer> to;
  for (size_t words : {1, 3, 524'287, 524'288, 524'289, 9'000'001, 200, 30'000'000, 5}) {
    given.push_back(random_words(words));
    to.push_back(memory(words * sizeof(uint32_t)));
  }
  passed = given;
  std::atomic<int> released = 0;
  std::vector<int> order;
  for (size_t i = 0; i < given.size(); ++i) {
    const size_t size_bytes = passed[i].size() * sizeof(uint32_t);
    if (i % 3 == 2) {
      ASSERT_TRUE(uploader_->bytes(passed[i].data(), size_bytes, to[i].as<void>()).ok());
      std::fill(passed[i].begin(), passed[i].end(), 0u);
    } else {
      uploader_->add_bytes(passed[i].data(), size_bytes, to[i].as<void>());
      uploader_->then([&, i] {
        std::fill(passed[i].begin(), passed[i].end(), 0u);
        order.push_back(static_cast<int>(i));
        ++released;
      });
    }
  }
  const Status finished = uploader_->finish();
  ASSERT_TRUE(finished.ok()) << finished.message();
  EXPECT_EQ(released, 6);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  for (size_t i = 0; i < given.size(); ++i) EXPECT_TRUE(on_gpu(to[i]) == given[i]) << i;
}

TEST_P(UploaderTest, RowsAreMadeOnceEach) {
  constexpr int64_t kRows = 3001, kWords = 1025;
  const DeviceBuffer to = memory(kRows * kWords * sizeof(uint32_t));
  std::vector<std::atomic<int>> made(kRows);
  const Status status = uploader_->rows(kRows, kWords * sizeof(uint32_t), to.as<void>(),
                                        [&](int64_t begin, int64_t end, std::byte* out) {
                                          auto* words = reinterpret_cast<uint32_t*>(out);
                                          for (int64_t row = begin; row < end; ++row, words += kWords) {
                                            ++made[row];
                                            std::iota(words, words + kWords, static_cast<uint32_t>(row * 7919));
                                          }
                                          return Status();
                                        });
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(uploader_->finish().ok());
  EXPECT_TRUE(std::all_of(made.begin(), made.end(), [](const auto& count) { return count == 1; }));
  const std::vector<uint32_t> words = on_gpu(to);
  for (int64_t row = 0; row < kRows; ++row) {
    ASSERT_EQ(words[row * kWords], static_cast<uint32_t>(row * 7919));
    ASSERT_EQ(words[row * kWords + kWords - 1], static_cast<uint32_t>(row * 7919 + kWords - 1));
  }
}

TEST_P(UploaderTest, AnErrorIsReportedAndWideRowsAreRefused) {
  const DeviceBuffer to = memory(size_t{16} << 20);
  const auto fill = [](int64_t begin, int64_t, std::byte*) {
    return begin >= 7 ? Status::data_loss("row 7") : Status();
  };
  EXPECT_EQ(uploader_->rows(16, size_t{1} << 20, to.as<void>(), fill).message(), "row 7");
  EXPECT_EQ(uploader_->finish().message(), "row 7");
  EXPECT_EQ(uploader_->rows(1, (size_t{2} << 20) + 1, to.as<void>(), fill).code(), StatusCode::unsupported);
}

INSTANTIATE_TEST_SUITE_P(Threads, UploaderTest, testing::Values(1, 3, 64));

}  // namespace
}  // namespace warpweave
