#include "kv/radix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace warpweave {
namespace {

using Tokens = std::vector<int32_t>;

// A request's side of the tree: match, take pages for the rest, insert, leave.
struct User {
  User(PagePool& pool, RadixTree& tree) : pool_(pool), tree_(tree) {}

  RadixTree::Match start(const Tokens& tokens, int limit = -1, const std::string& salt = "") {
    const auto query = std::span(tokens).first(limit < 0 ? tokens.size() : limit);
    const auto match = tree_.match_and_lock(salt, query, pages);
    node = match.node;
    if (match.tail_tokens > 0) pool_.unref(match.tail_pages[0]);
    grow(tokens.size());
    return match;
  }
  void grow(size_t tokens) {
    while (static_cast<int>(pages.size()) < pool_.pages_for(tokens)) pages.push_back(pool_.alloc());
  }
  void insert(const Tokens& tokens) {
    node = tree_.insert(node, tokens, std::span(pages).first(pool_.pages_for(tokens.size())),
                        displaced);
    for (const int32_t page : displaced) pool_.unref(page);
  }
  void leave() {
    tree_.unlock(node);
    for (const int32_t page : pages) pool_.unref(page);
    pages.clear();
  }

  PagePool& pool_;
  RadixTree& tree_;
  RadixTree::Node* node = nullptr;
  Tokens pages, displaced;
};

class RadixTreeTest : public testing::TestWithParam<int> {};

Tokens iota(int count, int first = 0) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

void cache(PagePool& pool, RadixTree& tree, const Tokens& tokens, const std::string& salt = "") {
  User user(pool, tree);
  user.start(tokens, -1, salt);
  user.insert(tokens);
  user.leave();
}

void expect_sound(const PagePool& pool, const RadixTree& tree) {
  int owned = 0;
  EXPECT_EQ(tree.audit([&](int32_t) { ++owned; }), "");
  EXPECT_EQ(owned, tree.evictable_pages() + tree.locked_pages());
  EXPECT_LE(owned, pool.num_used());
}

TEST_P(RadixTreeTest, MatchesEveryTokenAtEveryPageSize) {
  const int page_size = GetParam();
  PagePool pool(2048, page_size);
  RadixTree tree(pool, PrefixMatchMode::token);
  const Tokens cached = iota(200);
  cache(pool, tree, cached);
  EXPECT_EQ(tree.evictable_tokens(), 200);
  for (int common = 0; common <= 200; ++common) {
    Tokens query = cached;
    query.resize(common);
    query.push_back(-1);
    EXPECT_EQ(tree.match_length("", query), common);
    User user(pool, tree);
    const auto match = user.start(query);
    EXPECT_EQ(match.full_tokens, common / page_size * page_size);
    EXPECT_EQ(match.tail_tokens, common % page_size);
    EXPECT_EQ(tree.locked_tokens(), match.full_tokens);
    user.leave();
    EXPECT_EQ(tree.evictable_tokens(), 200);
  }
  expect_sound(pool, tree);
}

TEST_P(RadixTreeTest, PageModeMatchesFullPagesOnly) {
  const int page_size = GetParam();
  PagePool pool(2048, page_size);
  RadixTree tree(pool, PrefixMatchMode::page);
  cache(pool, tree, iota(200));
  EXPECT_EQ(tree.evictable_tokens(), 200 / page_size * page_size);
  for (int common = 0; common <= 200; ++common) {
    Tokens query = iota(common);
    query.push_back(-1);
    EXPECT_EQ(tree.match_length("", query), common / page_size * page_size);
  }
}

TEST_P(RadixTreeTest, AgreesWithBruteForce) {
  const int page_size = GetParam();
  PagePool pool(4096, page_size);
  RadixTree tree(pool, PrefixMatchMode::token);
  std::mt19937 rng(page_size);
  const auto random_tokens = [&](const std::vector<Tokens>& known) {
    Tokens tokens;
    if (!known.empty() && rng() % 4 != 0) {
      tokens = known[rng() % known.size()];
      tokens.resize(rng() % (tokens.size() + 1));
    }
    for (int i = rng() % 40; i >= 0; --i) tokens.push_back(rng() % 3);
    return tokens;
  };
  std::vector<Tokens> known;
  for (int round = 0; round < 300; ++round) {
    const Tokens query = random_tokens(known);
    int best = 0;
    for (const Tokens& tokens : known) {
      const auto common = std::mismatch(tokens.begin(), tokens.end(), query.begin(), query.end());
      best = std::max(best, static_cast<int>(common.second - query.begin()));
    }
    ASSERT_EQ(tree.match_length("", query), best);
    if (rng() % 3 == 0 && pool.num_free() > 200) {
      cache(pool, tree, query);
      known.push_back(query);
      expect_sound(pool, tree);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(PageSizes, RadixTreeTest, testing::Values(1, 2, 3, 16, 53, 64, 256));

TEST(RadixTree, SharesFullPagesByReference) {
  PagePool pool(16, 4);
  RadixTree tree(pool, PrefixMatchMode::token);
  cache(pool, tree, iota(10));
  EXPECT_EQ(pool.num_used(), 3);
  User a(pool, tree), b(pool, tree);
  a.start(iota(12));
  b.start(iota(11));
  EXPECT_EQ(a.pages[0], b.pages[0]);
  EXPECT_EQ(a.pages[1], b.pages[1]);
  EXPECT_NE(a.pages[2], b.pages[2]);
  EXPECT_EQ(pool.refs(a.pages[0]), 3);
  a.leave();
  b.leave();
  EXPECT_EQ(pool.num_used(), 3);
}

TEST(RadixTree, KeepsSaltsApart) {
  PagePool pool(16, 2);
  RadixTree tree(pool, PrefixMatchMode::token);
  cache(pool, tree, iota(6), "alice");
  EXPECT_EQ(tree.match_length("alice", iota(6)), 6);
  EXPECT_EQ(tree.match_length("bob", iota(6)), 0);
  EXPECT_EQ(tree.match_length("", iota(6)), 0);
}

TEST(RadixTree, FindsTheBestOfManySiblingsThatPartInsideAPage) {
  PagePool pool(256, 8);
  RadixTree tree(pool, PrefixMatchMode::token);
  for (int i = 0; i < 100; ++i) cache(pool, tree, {7, 7, i % 5, i % 25, i, i, i, i, i});
  EXPECT_EQ(tree.match_length("", Tokens{7, 7, 3, 23, 48, 0}), 5);
  EXPECT_EQ(tree.match_length("", Tokens{7, 7, 3, 23, 500}), 4);
  EXPECT_EQ(tree.match_length("", Tokens{7, 7, 9}), 2);
  expect_sound(pool, tree);
}

TEST(RadixTree, RunningRequestExtendsItsOwnPartialPage) {
  PagePool pool(8, 4);
  RadixTree tree(pool, PrefixMatchMode::token);
  User user(pool, tree);
  user.start(iota(6));
  user.insert(iota(6));
  EXPECT_EQ(tree.match_length("", iota(12)), 6);  // visible while it runs
  EXPECT_EQ(tree.locked_tokens(), 6);
  user.grow(11);
  user.insert(iota(11));
  EXPECT_EQ(tree.match_length("", iota(12)), 11);
  EXPECT_EQ(tree.locked_tokens(), 11);
  EXPECT_TRUE(user.displaced.empty());
  user.leave();
  EXPECT_EQ(tree.evictable_tokens(), 11);
  EXPECT_EQ(pool.num_used(), 3);
  expect_sound(pool, tree);
}

TEST(RadixTree, LongerCopyReplacesAPartialLeafNobodyUses) {
  PagePool pool(8, 8);
  RadixTree tree(pool, PrefixMatchMode::token);
  cache(pool, tree, iota(3));
  cache(pool, tree, iota(6));
  EXPECT_EQ(tree.evictable_tokens(), 6);
  EXPECT_EQ(pool.num_used(), 1);
  cache(pool, tree, iota(4));  // a prefix of what is there
  EXPECT_EQ(tree.evictable_tokens(), 6);
  EXPECT_EQ(pool.num_used(), 1);
}

TEST(RadixTree, TwoThatComputedTheSameKeepOneCopy) {
  PagePool pool(16, 4);
  RadixTree tree(pool, PrefixMatchMode::token);
  User a(pool, tree), b(pool, tree);
  a.start(iota(10));
  b.start(iota(10));  // nothing cached yet
  a.insert(iota(10));
  b.insert(iota(10));
  EXPECT_EQ(b.displaced.size(), 2u);
  EXPECT_EQ(b.pages[0], a.pages[0]);
  EXPECT_EQ(b.pages[1], a.pages[1]);
  EXPECT_NE(b.pages[2], a.pages[2]);  // both go on writing their last page
  EXPECT_EQ(pool.num_used(), 4);
  expect_sound(pool, tree);
  a.leave();
  b.leave();
  EXPECT_EQ(pool.num_used(), 3);
}

TEST(RadixTree, EvictsTheLeastRecentlyUsedFromItsEnd) {
  PagePool pool(16, 4);
  RadixTree tree(pool, PrefixMatchMode::token);
  const Tokens old = iota(14, 100), recent = iota(8, 200);
  cache(pool, tree, old);
  cache(pool, tree, recent);
  EXPECT_EQ(tree.evict(1), 1);
  EXPECT_EQ(tree.match_length("", old), 12);
  EXPECT_EQ(tree.evict(2), 2);
  EXPECT_EQ(tree.match_length("", old), 4);
  EXPECT_EQ(tree.match_length("", recent), 8);
  User user(pool, tree);
  user.start(old);  // used again: now `recent` is the oldest
  user.leave();
  EXPECT_EQ(tree.evict(2), 2);
  EXPECT_EQ(tree.match_length("", recent), 0);
  EXPECT_EQ(tree.match_length("", old), 4);
  EXPECT_EQ(tree.evicted_tokens_total(), 18u);
  expect_sound(pool, tree);
}

TEST(RadixTree, NeverEvictsWhatIsLocked) {
  PagePool pool(16, 2);
  RadixTree tree(pool, PrefixMatchMode::token);
  cache(pool, tree, iota(12));
  User user(pool, tree);
  user.start(iota(6));
  EXPECT_EQ(tree.locked_tokens(), 6);
  EXPECT_EQ(tree.evictable_tokens(), 6);
  EXPECT_EQ(tree.evict(100), 3);
  EXPECT_EQ(tree.match_length("", iota(12)), 6);
  user.leave();
  EXPECT_EQ(tree.evict(100), 3);
  EXPECT_EQ(pool.num_used(), 0);
  expect_sound(pool, tree);
}

TEST(RadixTree, AHeldCopySourceDoesNotCountAsFreed) {
  PagePool pool(8, 4);
  RadixTree tree(pool, PrefixMatchMode::token);
  cache(pool, tree, iota(3));
  Tokens pages;
  const auto match = tree.match_and_lock("", iota(2), pages);
  ASSERT_EQ(match.tail_tokens, 2);
  EXPECT_EQ(tree.evict(1), 0);  // the tree lets go, the copy still holds the page
  EXPECT_EQ(pool.refs(match.tail_pages[0]), 1);
  EXPECT_TRUE(pool.unref(match.tail_pages[0]));
  tree.unlock(match.node);
  expect_sound(pool, tree);
}

}  // namespace
}  // namespace warpweave
