// How trees of drafts grow, and what is kept of them.
#include "spec/draft_tree.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "spec/draft_options.h"

namespace warpweave {
namespace {

using Choices = std::vector<DraftChoice>;

TEST(TopChoices, AreTheBestWithTheirProbabilities) {
  Choices out;
  top_choices(std::vector<float>{0, 2, 1, 2}, 3, out);
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(out[0].token, 1) << "of equals the first";
  EXPECT_EQ(out[1].token, 3);
  EXPECT_EQ(out[2].token, 2);
  EXPECT_NEAR(out[0].logprob, 2 - std::log(1 + 2 * std::exp(2.0) + std::exp(1.0)), 1e-5);
}

TEST(TopChoices, AreThereEvenWhereLogitsAreNoNumbers) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  Choices out;
  top_choices(std::vector<float>(5, kNan), 2, out);
  ASSERT_EQ(out.size(), 2u);
  for (const DraftChoice& choice : out) EXPECT_FALSE(std::isnan(choice.logprob));
  top_choices(std::vector<float>{-kInf, kNan, 1, -kInf}, 4, out);
  ASSERT_EQ(out.size(), 4u);
  EXPECT_EQ(out[0].token, 2);
}

TEST(DraftTree, WithOneBranchIsAChain) {
  DraftTree tree;
  tree.start(1, Choices{{7, -0.1f}, {8, -0.2f}});
  for (int32_t token = 10; token < 13; ++token) {
    tree.expand();
    ASSERT_EQ(tree.num_waiting(), 1);
    tree.add(0, Choices{{token, -0.5f}});
  }
  Proposal out;
  tree.take(4, out);
  EXPECT_TRUE(out.is_chain());
  EXPECT_EQ(out.tokens, (std::vector<int32_t>{7, 10, 11, 12}));
}

TEST(DraftTree, ExpandsTheLikeliestAndKeepsTheLikeliest) {
  DraftTree tree;
  tree.start(2, Choices{{1, -0.1f}, {2, -3.0f}});
  tree.expand();
  ASSERT_EQ(tree.num_waiting(), 2);
  tree.add(0, Choices{{11, -0.2f}, {12, -0.4f}});
  tree.add(1, Choices{{21, -0.1f}, {22, -9.0f}});
  tree.expand();  // 11 and 12 are likelier than what follows 2
  ASSERT_EQ(tree.num_waiting(), 2);
  EXPECT_EQ(tree.node(tree.expanded()[2]).token, 11);
  EXPECT_EQ(tree.node(tree.expanded()[3]).token, 12);
  tree.add(0, Choices{{111, -0.1f}, {112, -5.0f}});
  tree.add(1, Choices{{121, -0.1f}, {122, -5.0f}});
  EXPECT_EQ(tree.levels(), 3);
  Proposal out;
  tree.take(5, out);
  EXPECT_EQ(out.tokens, (std::vector<int32_t>{1, 11, 12, 111, 121}));
  EXPECT_EQ(out.parents, (std::vector<int>{0, 1, 1, 2, 3}));
}

TEST(DraftTree, PadsToTheRoomThatWasKept) {
  DraftTree tree;
  tree.start(2, {});
  tree.expand();
  EXPECT_EQ(tree.num_waiting(), 0);
  Proposal out;
  tree.take(3, out);
  EXPECT_EQ(out.size(), 3);
  EXPECT_TRUE(out.is_chain());
}

TEST(DraftTree, KeepsParentsOfWhateverItKeeps) {
  std::mt19937 rng(4);
  for (int round = 0; round < 200; ++round) {
    const int topk = 1 + static_cast<int>(rng() % 5), steps = 1 + static_cast<int>(rng() % 4);
    const auto choices = [&] {
      Choices out;
      for (int i = 0; i < topk; ++i) out.push_back({static_cast<int32_t>(i), -static_cast<float>(rng() % 100) / 10});
      return out;
    };
    DraftTree tree;
    tree.start(topk, choices());
    while (tree.levels() < steps) {
      tree.expand();
      for (int k = 0, count = tree.num_waiting(); k < count; ++k) tree.add(k, choices());
    }
    const DraftOptions options{.eagle = true, .num_steps = steps, .topk = topk,
                               .num_draft_tokens = 2 + static_cast<int>(rng() % 12)};
    bool is_tree = false;
    const int count = options.nodes_for(options.max_proposals(), is_tree);
    Proposal out;
    tree.take(count, out);
    ASSERT_EQ(out.size(), count);
    for (int node = 1; node <= count; ++node) {
      ASSERT_LT(out.parent(node), node);
      ASSERT_EQ(out.child(out.parent(node), out.token(node)), node) << "siblings differ";
    }
  }
}

TEST(DraftOptions, DraftAChainWhereATreeHasNoRoom) {
  const DraftOptions options{.eagle = true, .num_steps = 3, .topk = 4, .num_draft_tokens = 8};
  EXPECT_EQ(options.max_proposals(), 8);
  bool tree = false;
  EXPECT_EQ(options.nodes_for(8, tree), 7);
  EXPECT_TRUE(tree);
  EXPECT_EQ(options.nodes_for(7, tree), 3);
  EXPECT_FALSE(tree);
  EXPECT_EQ(options.nodes_for(2, tree), 2);
}

}  // namespace
}  // namespace warpweave
