// Checkpoints of recurrent layers in the prefix cache: a match ends at the last one that its tokens pass, wherever in a
// page sequences part.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "kv/common_prefix.h"
#include "kv/radix_tree.h"

namespace warpweave {
namespace {

using Tokens = std::vector<int32_t>;

class StatesOfTree : public testing::TestWithParam<int> {
 protected:
  // Caches `tokens` with checkpoints after some of them.
  void cache(const Tokens& tokens, const std::vector<int>& positions, CheckpointWorth worth = CheckpointWorth::kept) {
    Tokens pages, displaced;
    const RadixTree::Match match = tree_.match_and_lock("", tokens, pages);
    if (match.tail_tokens > 0) pool_.unref(match.tail_pages[0]);
    if (match.state_slot != kNoStateSlot) states_.unref(match.state_slot);
    while (static_cast<int>(pages.size()) < pool_.pages_for(tokens.size())) pages.push_back(pool_.alloc());
    RadixTree::Node* const node = tree_.insert(match.node, tokens, pages, displaced);
    for (const int position : positions) {
      tree_.add_checkpoint(node, std::span(tokens).first(position), states_.alloc(StateSlotUse::checkpoint),
                           worth);
      known_.emplace_back(tokens.begin(), tokens.begin() + position);
    }
    tree_.unlock(node);
    for (const auto& list : {pages, displaced}) {
      for (const int32_t page : list) pool_.unref(page);
    }
  }
  // The longest sequence with a checkpoint at its end that `query` begins with.
  int expected(const Tokens& query) const {
    size_t longest = 0;
    for (const Tokens& tokens : known_) {
      if (common_prefix(tokens, query) == static_cast<int>(tokens.size())) longest = std::max(longest, tokens.size());
    }
    return static_cast<int>(longest);
  }
  void expect_sound() {
    EXPECT_EQ(tree_.audit([](int32_t) {}), "");
    EXPECT_TRUE(states_.audit({}, tree_.checkpoints()).ok());
  }

  PagePool pool_{4096, GetParam()};
  StatePool states_{4096, 0};
  RadixTree tree_{pool_, PrefixMatchMode::token, {CacheGroupRule{}}, &states_};
  std::vector<Tokens> known_;
};

Tokens parting(const Tokens& first, int shared, int own, int tokens) {
  Tokens out(first.begin(), first.begin() + shared);
  out.resize(tokens, own);
  return out;
}

// Two that part within a page stand beside each other, and each has some of the checkpoints before they part.
TEST_P(StatesOfTree, ThoseOfSiblingsAreFound) {
  Tokens first(70);
  std::iota(first.begin(), first.end(), 100);
  cache(first, {16, 32, 48, 64});
  const Tokens second = parting(first, 40, 1, 70);
  cache(second, {40, 48, 64});
  EXPECT_EQ(tree_.match_length("", second), 64);
  EXPECT_EQ(tree_.match_length("", parting(second, 45, 2, 70)), 40);
  EXPECT_EQ(tree_.match_length("", parting(first, 39, 2, 70)), 32);
  EXPECT_EQ(tree_.match_length("", parting(first, 47, 2, 70)), 40);
  EXPECT_EQ(tree_.match_length("", parting(first, 31, 3, 70)), 16);
  EXPECT_EQ(tree_.match_length("", parting(first, 15, 3, 70)), 0);
  expect_sound();
}

// Those that were only passed go first, then the one used longest ago. A use keeps one, and so does a sequence's end there.
TEST_P(StatesOfTree, GiveWayByWorthAndUse) {
  Tokens first(70);
  std::iota(first.begin(), first.end(), 100);
  cache(first, {70});
  cache(first, {16, 32, 48, 64}, CheckpointWorth::passed);
  cache(Tokens(first.begin(), first.begin() + 48), {48});
  cache(parting(first, 40, 1, 45), {45});  // goes on from 32
  const auto left = [&] {
    Tokens positions;
    for (const int position : {16, 32, 48, 64, 70}) {
      if (tree_.match_length("", parting(first, position, 2, 80)) == position) positions.push_back(position);
    }
    return positions;
  };
  ASSERT_EQ(left(), (Tokens{16, 32, 48, 64, 70}));
  EXPECT_TRUE(tree_.evict_checkpoint(CheckpointWorth::passed));
  EXPECT_EQ(left(), (Tokens{32, 48, 64, 70}));
  EXPECT_TRUE(tree_.evict_checkpoint());
  EXPECT_EQ(left(), (Tokens{32, 48, 70}));
  EXPECT_FALSE(tree_.evict_checkpoint(CheckpointWorth::passed));
  for (const Tokens& still : {Tokens{32, 48}, Tokens{32}, Tokens{}}) {
    EXPECT_TRUE(tree_.evict_checkpoint());
    EXPECT_EQ(left(), still);
    expect_sound();
  }
}

TEST_P(StatesOfTree, AgreesWithBruteForce) {
  std::mt19937 random(17);
  const auto pick = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  const auto draw = [&] {
    Tokens tokens;
    if (!known_.empty() && pick(0, 3) > 0) tokens = known_[pick(0, static_cast<int>(known_.size()) - 1)];
    tokens.resize(pick(0, static_cast<int>(tokens.size())));
    while (static_cast<int>(tokens.size()) < 40 && pick(0, 20) > 0) tokens.push_back(pick(0, 1));
    return tokens;
  };
  for (int i = 0; i < 60; ++i) {
    const Tokens tokens = draw();
    if (tokens.empty()) continue;
    std::vector<int> positions;
    for (int position = 1; position <= static_cast<int>(tokens.size()); ++position) {
      if (pick(0, 9) == 0) positions.push_back(position);
    }
    cache(tokens, positions);
    for (int query = 0; query < 10; ++query) {
      const Tokens asked = draw();
      ASSERT_EQ(tree_.match_length("", asked), expected(asked)) << i << " " << query;
    }
    expect_sound();
  }
}

INSTANTIATE_TEST_SUITE_P(PageSizes, StatesOfTree, testing::Values(1, 3, 16, 24, 64, 128));

}  // namespace
}  // namespace warpweave
