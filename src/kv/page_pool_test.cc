#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <set>

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

TEST(PagePool, CountsPagesOfTokens) {
  const PagePool pool(1, 53);
  EXPECT_EQ(pool.pages_for(0), 0);
  EXPECT_EQ(pool.pages_for(53), 1);
  EXPECT_EQ(pool.pages_for(54), 2);
  EXPECT_EQ(pool.pages_for(53ll * 40'000'000), 40'000'000);
}

TEST(PagePoolDeathTest, DoubleFreeIsAProgrammerError) {
#ifdef NDEBUG
  GTEST_SKIP() << "built without asserts";
#endif
  PagePool pool(2, 1);
  const int32_t page = pool.alloc();
  pool.unref(page);
  EXPECT_DEATH(pool.unref(page), "refs_");
  EXPECT_DEATH(pool.ref(page), "refs_");
}

}  // namespace
}  // namespace warpweave
