// Pages of the KV pool from bytes or tokens, shared by need or split.
#include "engine/pool_size.h"

#include <gtest/gtest.h>

namespace warpweave {
namespace {

constexpr size_t kPageBytes = 1000;

// Gemma 3's: five windowed groups for one that keeps all.
SchedulerConfig gemma() {
  SchedulerConfig config;
  config.page_size = 16;
  config.context_len = 4096;
  config.max_running_requests = 100;
  config.chunked_prefill_size = 512;
  config.overlap_depth = 1;
  config.cache_groups.assign(6, {1023});
  config.cache_groups[0] = {};
  return config;
}

ServerArgs with_ratio(double ratio) {
  ServerArgs args;
  args.swa_full_tokens_ratio = ratio;
  return args;
}

TEST(PoolSize, IsSharedByDefault) {
  SchedulerConfig config = gemma();
  ASSERT_TRUE(size_pool({}, 1200 * kPageBytes, kPageBytes, config).ok());
  EXPECT_EQ(config.num_pages, 1200);
  EXPECT_EQ(config.window_pages, 0);
  EXPECT_EQ(pool_tokens(config).total, 1200 / 6 * 16);
  EXPECT_EQ(pool_tokens(config).windows, 0);
  EXPECT_EQ(pool_split_text({}, config), "");
}

TEST(PoolSize, TokensThatDoNotFitTheMemoryAreRefused) {
  SchedulerConfig config = gemma();
  ServerArgs args;
  args.max_total_tokens = 16'000;
  ASSERT_TRUE(size_pool(args, 0, kPageBytes, config).ok());
  ASSERT_EQ(config.num_pages, 6000);
  EXPECT_TRUE(check_pool_fits(args, kPageBytes, 6'000'000, config).ok());
  const Status refused = check_pool_fits(args, kPageBytes, 3'000'000, config);
  EXPECT_EQ(refused.field(), "--max-total-tokens");
  EXPECT_NE(refused.message().find("give at most 8000,"), std::string::npos) << refused.message();
  EXPECT_TRUE(check_pool_fits({}, kPageBytes, 3'000'000, config).ok()) << "what was sized here is not asked again";
}

TEST(PoolSize, ARatioSplitsTheBytes) {
  // full + 5 * 0.8 full = 5000 pages
  SchedulerConfig config = gemma();
  ASSERT_TRUE(size_pool(with_ratio(0.8), 5000 * kPageBytes, kPageBytes, config).ok());
  EXPECT_EQ(config.window_pages, 5 * 800);
  EXPECT_EQ(config.num_pages, 1000 + 5 * 800);
  EXPECT_TRUE(Scheduler::validate(config).ok());
  EXPECT_EQ(pool_tokens(config).total, 16'000);
  EXPECT_EQ(pool_tokens(config).windows, 12'800);
  // A request holds 256 pages of the first group and 65 of each other.
  EXPECT_EQ(pool_tokens(config).at_context, 1000 / 256 * 4096);
  EXPECT_NE(pool_split_text(with_ratio(0.8), config).find("a part of their own"), std::string::npos);
}

TEST(PoolSize, MaxTotalTokensAreThoseOfLayersThatKeepAll) {
  SchedulerConfig config = gemma();
  ServerArgs args = with_ratio(0.5);
  args.max_total_tokens = 8000;
  ASSERT_TRUE(size_pool(args, 0, kPageBytes, config).ok());
  EXPECT_EQ(config.num_pages, 500 + 5 * 250);
  EXPECT_EQ(config.window_pages, 5 * 250);
}

TEST(PoolSize, ASplitPoolIsNotLargerThanRequestsNeed) {
  SchedulerConfig config = gemma();
  config.max_running_requests = 2;
  ASSERT_TRUE(size_pool(with_ratio(1), 1e12, kPageBytes, config).ok());
  EXPECT_EQ(config.num_pages, 6 * 2 * 4096 / 16);
}

TEST(PoolSize, ChunksAreCutToWhatWindowsHold) {
  SchedulerConfig config = gemma();
  ServerArgs args = with_ratio(0.2);
  args.max_total_tokens = 8000;  // windows: 100 pages, 1600 tokens
  ASSERT_TRUE(size_pool(args, 0, kPageBytes, config).ok());
  EXPECT_EQ(config.chunked_prefill_size, (99 * 16 - 1023) / 2);
  const PageCount peak = peak_request_pages(config, config.context_len, /*prefilling=*/true);
  EXPECT_LE(peak.windows, config.window_pages);
  EXPECT_GT(peak.windows, config.window_pages - 10);
}

TEST(PoolSize, WindowsWithoutRoomAreRefused) {
  for (const double ratio : {0.001, 0.13}) {  // no page, and less than a window and what is computed beside it
    SchedulerConfig config = gemma();
    ServerArgs args = with_ratio(ratio);
    args.max_total_tokens = 8000;
    const Status status = size_pool(args, 0, kPageBytes, config);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.field(), "--swa-full-tokens-ratio") << status.message();
    EXPECT_NE(status.message().find("raise it"), std::string::npos);
  }
}

TEST(PoolSize, NothingIsSplitWithoutLayersOfBothKinds) {
  for (const std::vector<CacheGroupRule>& groups : {std::vector<CacheGroupRule>{{}}, {{7}, {7}}}) {
    SchedulerConfig config = gemma();
    config.cache_groups = groups;
    ASSERT_TRUE(size_pool(with_ratio(0.5), 1000 * kPageBytes, kPageBytes, config).ok());
    EXPECT_EQ(config.window_pages, 0);
    EXPECT_EQ(config.num_pages, 1000);
    EXPECT_NE(pool_split_text(with_ratio(0.5), config).find("splits nothing: this model"), std::string::npos);
  }
  ServerArgs one_pool = with_ratio(0.5);
  one_pool.disable_hybrid_swa_memory = true;
  SchedulerConfig config = gemma();
  config.cache_groups = {{}};
  EXPECT_NE(pool_split_text(one_pool, config).find("--disable-hybrid-swa-memory keeps"), std::string::npos);
}

TEST(PoolSize, APoolWithoutAPageIsRefused) {
  SchedulerConfig config = gemma();
  EXPECT_EQ(size_pool({}, 5 * kPageBytes, kPageBytes, config).field(), "--max-total-tokens");
  EXPECT_EQ(size_pool(with_ratio(1), 5 * kPageBytes, kPageBytes, config).field(), "--max-total-tokens");
}

}  // namespace
}  // namespace warpweave
