#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <set>

#include "base/resident_memory.h"

namespace warpweave {
namespace {

TEST(PagePool, HandsOutEveryPageOnceThenNone) {
  PagePool pool(5, 16);
  std::set<int32_t> pages;
  for (int i = 0; i < 5; ++i) pages.insert(pool.alloc());
  EXPECT_EQ(pages, (std::set<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.alloc(), kNoPage);
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(pool.num_used(), 5);
}

TEST(PagePool, FreesWithTheLastReference) {
  PagePool pool(2, 1);
  const int32_t page = pool.alloc();
  pool.ref(page);
  EXPECT_FALSE(pool.unref(page));
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_TRUE(pool.unref(page));
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(PagePool, ReusesTheWarmestPage) {
  PagePool pool(8, 1);
  EXPECT_EQ(pool.alloc(), 0);
  EXPECT_EQ(pool.alloc(), 1);
  pool.unref(0);
  EXPECT_EQ(pool.alloc(), 0);
}

// In the order of a stack, however deep, before pages that were never used.
TEST(PagePool, ReusesFreedPagesLastFirst) {
  PagePool pool(8, 1);
  for (int i = 0; i < 4; ++i) pool.alloc();
  for (const int32_t page : {2, 0, 3}) pool.unref(page);
  EXPECT_EQ(pool.num_free(), 7);
  for (const int32_t page : {3, 0, 2, 4, 5, 6, 7, kNoPage}) EXPECT_EQ(pool.alloc(), page);
  EXPECT_EQ(pool.num_free(), 0);
}

TEST(PagePool, CountsSparePagesThatNobodyElseHolds) {
  PagePool pool(4, 1);
  const int32_t page = pool.alloc();
  pool.mark_spare(page, true);
  pool.mark_spare(page, true);
  EXPECT_EQ(pool.num_spare(), 1);
  pool.ref(page);
  EXPECT_EQ(pool.num_spare(), 0);
  EXPECT_EQ(pool.refs(page), 2);
  pool.unref(page);
  EXPECT_EQ(pool.num_spare(), 1);
  pool.mark_spare(page, false);
  EXPECT_EQ(pool.num_spare(), 0);
  pool.mark_spare(page, true);
  EXPECT_TRUE(pool.unref(page));
  EXPECT_EQ(pool.num_spare(), 0);
  EXPECT_EQ(pool.refs(page), 0);
  EXPECT_EQ(pool.alloc(), page) << "as an ordinary page";
  EXPECT_EQ(pool.num_spare(), 0);
  EXPECT_TRUE(pool.spare_count_holds());
}

// A server's pool has pages for all the memory there is, of which most are never used.
TEST(PagePool, TakesMemoryForUsedPagesAlone) {
  constexpr int kPages = 100'000'000;
  const int64_t before_bytes = resident_memory().anonymous_bytes;
  PagePool pool(kPages, 1, /*window_pages=*/kPages / 2);
  for (int i = 0; i < 1000; ++i) {
    pool.alloc(PagePart::windows);
    pool.unref(pool.alloc());
  }
  EXPECT_LT(resident_memory().anonymous_bytes - before_bytes, kPages / 10);
}

TEST(PagePool, CountsPagesOfTokens) {
  const PagePool pool(1, 53);
  EXPECT_EQ(pool.pages_for(0), 0);
  EXPECT_EQ(pool.pages_for(53), 1);
  EXPECT_EQ(pool.pages_for(54), 2);
  EXPECT_EQ(pool.pages_for(53ll * 40'000'000), 40'000'000);
}

TEST(PagePool, ASplitPoolKeepsWindowsApart) {
  PagePool pool(5, 1, /*window_pages=*/2);
  EXPECT_TRUE(pool.split());
  EXPECT_EQ(pool.num_free(PagePart::full), 3);
  EXPECT_EQ(pool.num_free(PagePart::windows), 2);
  EXPECT_EQ(pool.num_free(), 5);
  std::set<int32_t> windows{pool.alloc(PagePart::windows), pool.alloc(PagePart::windows)};
  EXPECT_EQ(windows, (std::set<int32_t>{3, 4}));
  EXPECT_EQ(pool.alloc(PagePart::windows), kNoPage);
  EXPECT_EQ(pool.alloc(), 0);
  EXPECT_EQ(pool.part_of(2), PagePart::full);
  EXPECT_EQ(pool.part_of(3), PagePart::windows);
  pool.unref(3);  // goes back to where it came from
  EXPECT_EQ(pool.num_free(PagePart::full), 2);
  EXPECT_EQ(pool.alloc(PagePart::windows), 3);
  // Neither part stands in for the other.
  EXPECT_TRUE(pool.covers({2, 1}, {2, 1}));
  EXPECT_FALSE(pool.covers({3, 0}, {2, 1}));
  EXPECT_FALSE(pool.covers({1, 2}, {2, 1}));
  EXPECT_TRUE(PagePool(5, 1).covers({3, 0}, {2, 1}));
  EXPECT_EQ(PagePool(5, 1).num_free(PagePart::windows), 5);
}

TEST(PagePoolDeathTest, DoubleFreeIsAProgrammerError) {
#ifdef NDEBUG
  GTEST_SKIP() << "built without asserts";
#endif
  PagePool pool(2, 1);
  const int32_t page = pool.alloc();
  pool.unref(page);
  EXPECT_DEATH(pool.unref(page), "refs");
  EXPECT_DEATH(pool.ref(page), "refs");
}

}  // namespace
}  // namespace warpweave
