#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>

#include "base/float16.h"
#include "base/huge_pages.h"
#include "base/log.h"
#include "base/testing/temporary_folder.h"
#include "base/threads.h"
#include "warpweave/status.h"
#include "warpweave/tensor.h"

namespace warpweave {
namespace {

Result<int> half(int value) {
  if (value % 2) return Status::invalid_argument("must be even, got " + std::to_string(value), "value");
  return value / 2;
}

Result<int> quarter(int value) {
  WW_ASSIGN_OR_RETURN(const int h, half(value));
  return half(h);
}

TEST(Status, PropagatesThroughResult) {
  EXPECT_EQ(*quarter(8), 2);
  const Result<int> bad = quarter(6);
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().field(), "value");
  EXPECT_EQ(bad.status().with_context("request").message(), "request: must be even, got 3");
}

TEST(Result, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 5);
}

TEST(Float16, RoundTripsEveryFiniteHalf) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half_bits = static_cast<uint16_t>(bits);
    const float value = f16_to_f32(half_bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value))));
    } else {
      EXPECT_EQ(f32_to_f16(value), half_bits) << bits;
    }
  }
}

TEST(Float16, RoundsToNearestEven) {
  EXPECT_EQ(f32_to_bf16(1.0f + 1.0f / 256), f32_to_bf16(1.0f));               // tie to even
  EXPECT_EQ(bf16_to_f32(f32_to_bf16(1.0f + 3.0f / 256)), 1.0f + 4.0f / 256);  // tie to even, up
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7bff);
}

TEST(DType, ParsesShortAndLongNames) {
  EXPECT_EQ(parse_dtype("bfloat16"), DType::bf16);
  EXPECT_EQ(parse_dtype("q4_1"), DType::q4_1);
  EXPECT_EQ(parse_dtype("int3"), std::nullopt);
  EXPECT_EQ(dtype_info(DType::q6_k).block_bytes, 210);
  EXPECT_EQ(parse_dtype("iq4_nl"), DType::iq4_nl);
  EXPECT_EQ(dtype_info(DType::iq4_xs).block_bytes, 136);
}

TEST(ThreadTeam, CoversEveryIndexOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadTeam team(threads);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> hits(97);
      team.parallel_for(97, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) hits[i].fetch_add(1);
      });
      for (auto& hit : hits) ASSERT_EQ(hit.load(), 1);
    }
  }
}

TEST(ThreadTeam, GivesRangesAndWhatOthersLeave) {
  for (int threads : {1, 2, 5}) {
    ThreadTeam team(threads);
    for (int64_t count : {0, 1, 4, 97}) {
      std::vector<std::atomic<int>> hits(count);
      team.parallel_ranges(count, [&](int member, int64_t index) {
        EXPECT_LT(member, threads);
        hits[index].fetch_add(1);
      });
      for (auto& hit : hits) ASSERT_EQ(hit.load(), 1);
    }
  }
}

TEST(ThreadTeam, RunsOnEveryMember) {
  ThreadTeam team(3);
  std::atomic<int> mask{0};
  team.run([&](int member, int members) {
    EXPECT_EQ(members, 3);
    mask.fetch_or(1 << member);
  });
  EXPECT_EQ(mask.load(), 7);
}

TEST(TemporaryFolder, IsNobodyElsesAndGoesWithAllThatIsInIt) {
  std::filesystem::path first, second;
  {
    const TemporaryFolder a, b;
    first = a.path();
    second = b.path();
    EXPECT_NE(first, second);
    EXPECT_TRUE(std::filesystem::is_empty(first));
    std::filesystem::create_directories(a / "some/folder");
    std::ofstream(a / "some/folder/file") << "text";
  }
  EXPECT_FALSE(std::filesystem::exists(first));
  EXPECT_FALSE(std::filesystem::exists(second));
}

TEST(Log, EscapesControlCharacters) {
  EXPECT_EQ(log_safe("a\nb\x1b[31m"), "a\\x0ab\\x1b[31m");
  EXPECT_EQ(log_safe("abcdef", 3), "abc...");
}

TEST(HugePages, MappingsBeginAtOneAndTakeWhatIsAskedFor) {
  for (const size_t bytes : {size_t{1}, size_t{5000}, kHugePageBytes, 3 * kHugePageBytes + 17}) {
    std::byte* const begin = map_at_huge_page(bytes);
    ASSERT_NE(begin, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(begin) % kHugePageBytes, 0u);
    begin[0] = begin[bytes - 1] = std::byte{1};
    EXPECT_EQ(munmap(begin, bytes), 0);
  }
  EXPECT_EQ(map_at_huge_page(size_t{1} << 60), nullptr);
}

}  // namespace
}  // namespace warpweave
