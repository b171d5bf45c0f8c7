// Prefix hits where groups have windows: what a hit needs, what is given up first, what is healed.
#include <gtest/gtest.h>

#include <numeric>

#include "kv/radix_tree.h"

namespace warpweave {
namespace {

using Tokens = std::vector<int32_t>;
constexpr int kPage = 4;
constexpr int kWindowLeft = 7;  // a row sees itself and seven tokens before it

Tokens iota(int count, int first = 0) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class WindowedTree : public testing::Test {
 protected:
  explicit WindowedTree(int window_pages = 0) : pool(200, kPage, window_pages) {}

  PagePool pool;
  RadixTree tree{pool, PrefixMatchMode::token, {{-1}, {kWindowLeft}}};

  // Caches `tokens` as a request does whose pages before token `kept_from` have left the window.
  void cache(const Tokens& tokens, int kept_from) {
    Tokens pages, displaced;
    const auto match = tree.match_and_lock("", tokens, pages);
    for (int g = 0; g < 2 && match.tail_tokens > 0; ++g) pool.unref(match.tail_pages[g]);
    while (static_cast<int>(pages.size()) < 2 * pool.pages_for(static_cast<int64_t>(tokens.size()))) {
      const bool gone = pages.size() % 2 == 1 && static_cast<int>(pages.size()) / 2 < kept_from / kPage;
      pages.push_back(gone ? kNoPage : pool.alloc(pages.size() % 2 == 1 ? PagePart::windows : PagePart::full));
    }
    RadixTree::Node* node = tree.insert(match.node, tokens, pages, displaced);
    for (const int32_t page : displaced) pool.unref(page);
    tree.unlock(node);
    for (const int32_t page : pages) {
      if (page != kNoPage) pool.unref(page);
    }
    audit();
  }

  void audit() {
    std::vector<int> refs(pool.num_pages());
    EXPECT_EQ(tree.audit([&](int32_t page) { ++refs[page]; }), "");
    for (int32_t page = 0; page < pool.num_pages(); ++page) EXPECT_EQ(refs[page], pool.refs(page)) << page;
    EXPECT_TRUE(pool.spare_count_holds());
  }
};

TEST_F(WindowedTree, HitsWhereTheWindowIsWhole) {
  cache(iota(40), /*kept_from=*/32);
  EXPECT_EQ(tree.match_length("", iota(48)), 40);
  // A shorter prefix lacks its window: only its own beginning could serve, and that is gone, too.
  EXPECT_EQ(tree.match_length("", iota(30)), 0);
  EXPECT_EQ(tree.match_length("", iota(39)), 39);
}

TEST_F(WindowedTree, HitsEverywhereWhileNothingIsGivenUp) {
  cache(iota(40), 0);
  for (int tokens = 1; tokens <= 40; ++tokens) EXPECT_EQ(tree.match_length("", iota(tokens)), tokens);
}

TEST_F(WindowedTree, GivesTheMiddleUpBeforeAnyEnd) {
  cache(iota(40), 0);
  cache(iota(40, 1000), 0);
  const int spare = pool.num_spare();
  EXPECT_EQ(spare, 20);
  // Of each sequence only the pages of [33, 40) must stay.
  EXPECT_EQ(tree.evict(16), 16);
  audit();
  EXPECT_EQ(tree.match_length("", iota(41)), 40);
  EXPECT_EQ(tree.match_length("", iota(41, 1000)), 40);
  EXPECT_EQ(tree.match_length("", iota(20)), 0);
  EXPECT_EQ(tree.evictable_tokens(), 80);
  // Now the oldest sequence goes from its end.
  EXPECT_GE(tree.evict(1), 1);
  audit();
  EXPECT_EQ(tree.match_length("", iota(41, 1000)), 40);
}

TEST_F(WindowedTree, KeepsTheWindowOfABranchPoint) {
  cache(iota(40), 0);
  Tokens branch = iota(20);
  for (int token : iota(20, 500)) branch.push_back(token);
  cache(branch, 0);  // splits the first sequence at 20
  tree.evict(pool.num_spare() - 6);
  audit();
  EXPECT_EQ(tree.match_length("", iota(20)), 20);
}

TEST_F(WindowedTree, TakesWhatItLacksFromTheNextRequest) {
  cache(iota(40), 32);
  EXPECT_EQ(tree.match_length("", iota(24)), 0);
  Tokens branch = iota(28);
  for (int token : iota(12, 700)) branch.push_back(token);
  cache(branch, 0);  // computed anew, with all its pages
  EXPECT_EQ(tree.match_length("", iota(24)), 24);
}

TEST_F(WindowedTree, AMatchHoldsTheWindowAndNoMore) {
  cache(iota(40), 0);
  Tokens pages;
  const auto match = tree.match_and_lock("", iota(36), pages);
  ASSERT_EQ(match.full_tokens, 36);
  ASSERT_EQ(pages.size(), 18u);
  for (int page = 0; page < 9; ++page) {
    EXPECT_NE(pages[2 * page], kNoPage);
    EXPECT_EQ(pages[2 * page + 1] == kNoPage, page < (36 - kWindowLeft) / kPage) << page;
  }
  EXPECT_EQ(pool.num_spare(), 10 - 2);
  for (const int32_t page : pages) {
    if (page != kNoPage) pool.unref(page);
  }
  tree.unlock(match.node);
  tree.clear();
  EXPECT_EQ(pool.num_used(), 0);
}

TEST_F(WindowedTree, GivesUpEvenEndsOfLockedSequencesAtLast) {
  cache(iota(40), 0);
  Tokens pages;
  const auto match = tree.match_and_lock("", iota(12), pages);
  const int spare = pool.num_spare();
  EXPECT_GE(tree.evict(1000), spare);
  EXPECT_EQ(pool.num_spare(), 0);
  for (const int32_t page : pages) {
    if (page != kNoPage) pool.unref(page);
  }
  tree.unlock(match.node);
  audit();
}

class SplitTree : public WindowedTree {
 protected:
  SplitTree() : WindowedTree(/*window_pages=*/60) {}
};

TEST_F(SplitTree, WindowsGiveUpWindowsOnly) {
  cache(iota(40), 0);
  cache(iota(40, 1000), 0);
  EXPECT_EQ(tree.evict(16, PagePart::windows), 16);
  audit();
  EXPECT_EQ(tree.evictable_tokens(), 80);
  EXPECT_EQ(tree.match_length("", iota(41)), 40);
  EXPECT_EQ(pool.num_free(PagePart::windows), 60 - 4);
  // The oldest sequence loses its end, and its tokens with it.
  EXPECT_EQ(tree.evict(1, PagePart::windows), 1);
  audit();
  EXPECT_EQ(tree.match_length("", iota(41, 1000)), 40);
}

TEST_F(SplitTree, TokensGoWithoutWindowsThatOthersNeed) {
  cache(iota(40), 0);
  cache(iota(40, 1000), 0);
  const int free_windows = pool.num_free(PagePart::windows);
  EXPECT_EQ(tree.evict(10, PagePart::full), 10);
  audit();
  EXPECT_EQ(tree.match_length("", iota(41)), 0);
  EXPECT_EQ(tree.match_length("", iota(41, 1000)), 40);
  EXPECT_EQ(tree.match_length("", iota(20, 1000)), 20);  // no window was dropped for it
  EXPECT_EQ(pool.num_free(PagePart::windows), free_windows + 10);
}

}  // namespace
}  // namespace warpweave
