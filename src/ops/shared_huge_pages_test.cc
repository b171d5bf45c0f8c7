#include "ops/shared_huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <random>
#include <vector>

#include "ops/aligned_buffer.h"

namespace warpweave {
namespace {

int maps_left = 0;

std::byte* map_some(size_t bytes) {
  if (maps_left-- <= 0) return nullptr;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

bool holds(const std::byte* block, size_t bytes, int value) {
  for (size_t i = 0; i < bytes; ++i) {
    if (block[i] != static_cast<std::byte>(value)) return false;
  }
  return true;
}

TEST(SharedHugePages, BlocksAreAlignedZeroAndApart) {
  maps_left = 100;
  SharedHugePages pages(map_some);
  std::vector<std::pair<std::byte*, size_t>> blocks;
  for (int i = 0; i < 40; ++i) {
    const size_t bytes = 40'001 + 3'000 * i;
    std::byte* const block = pages.take(bytes);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
    EXPECT_TRUE(holds(block, bytes, 0));
    std::memset(block, i + 1, bytes);
    blocks.emplace_back(block, bytes);
  }
  EXPECT_EQ(pages.num_chunks(), 1u);
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(holds(blocks[i].first, blocks[i].second, i + 1)) << i;
  for (const auto& [block, bytes] : blocks) pages.give_back(block, bytes);
  EXPECT_EQ(pages.num_chunks(), 0u);
}

TEST(SharedHugePages, WhatIsGivenBackLeavesItsNeighboursAlone) {
  maps_left = 100;
  SharedHugePages pages(map_some);
  constexpr size_t kBytes = 100'100;
  std::byte *left = pages.take(kBytes), *between = pages.take(kBytes), *right = pages.take(kBytes);
  std::memset(left, 1, kBytes);
  std::memset(between, 2, kBytes);
  std::memset(right, 3, kBytes);
  pages.give_back(between, kBytes);
  EXPECT_TRUE(holds(left, kBytes, 1));
  EXPECT_TRUE(holds(right, kBytes, 3));
  EXPECT_EQ(between[kBytes / 2], std::byte{0});  // that page went back to the system
  std::byte* const next = pages.take(kBytes);
  EXPECT_TRUE(holds(next, kBytes, 0));
}

TEST(SharedHugePages, ChunksComeAndGoAndMayBeRefused) {
  maps_left = 2;
  SharedHugePages pages(map_some);
  std::vector<std::byte*> blocks;
  for (;;) {
    std::byte* const block = pages.take(SharedHugePages::kMostBytes);
    if (block == nullptr) break;
    blocks.push_back(block);
  }
  EXPECT_EQ(pages.num_chunks(), 2u);
  EXPECT_EQ(blocks.size(), 2 * SharedHugePages::kChunkBytes / SharedHugePages::kMostBytes);
  for (std::byte* const block : blocks) pages.give_back(block, SharedHugePages::kMostBytes);
  EXPECT_EQ(pages.num_chunks(), 0u);
  maps_left = 1;
  EXPECT_NE(pages.take(SharedHugePages::kMostBytes), nullptr);
}

TEST(AlignedBuffer, EverySizeIsAlignedAndZeroAndKeepsWhatIsWritten) {
  std::mt19937 rng(1);
  std::vector<std::pair<AlignedBuffer, int>> buffers;
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{32} << 10, (size_t{32} << 10) + 1, size_t{700'000},
                             size_t{2} << 20, (size_t{3} << 20) + 5, size_t{16} << 20, (size_t{16} << 20) + 1}) {
    AlignedBuffer buffer = AlignedBuffer::allocate(bytes);
    ASSERT_NE(buffer.data(), nullptr);
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    EXPECT_TRUE(holds(buffer.data(), bytes, 0));
    const int value = static_cast<int>(rng() % 255) + 1;
    std::memset(buffer.data(), value, bytes);
    buffers.emplace_back(std::move(buffer), value);
    if (buffers.size() % 3 == 0) buffers.erase(buffers.begin());
  }
  for (const auto& [buffer, value] : buffers) EXPECT_TRUE(holds(buffer.data(), buffer.size(), value));
}

}  // namespace
}  // namespace warpweave
