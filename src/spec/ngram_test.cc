// NGRAM: what is guessed from which text, within which bounds, and for whom.
#include <gtest/gtest.h>

#include <random>

#include "spec/ngram_proposer.h"

namespace warpweave {
namespace {

using Ids = std::vector<int32_t>;

struct Asked {
  Ids prompt;
  Ids output = {};
  int max_tokens = 11;
  uint64_t request = 1;
  std::string salt = {};
};

Proposal propose(NgramProposer& proposer, const Asked& asked) {
  Proposal out;
  proposer.propose({.input_ids = asked.prompt, .output_ids = asked.output, .max_tokens = asked.max_tokens,
                    .request = asked.request, .cache_salt = asked.salt}, out);
  return out;
}

TEST(NgramTrie, CountsVisitsAndFindsChildrenAfterGrowing) {
  NgramTrie trie;
  const auto root = trie.root("");
  for (int32_t token = 0; token < 5000; ++token) trie.visit(trie.visit(root, token % 100), token);
  EXPECT_EQ(trie.node(trie.find(root, 42)).count, 50u);
  EXPECT_EQ(trie.node(trie.find(root, 42)).num_children, 50u);
  EXPECT_EQ(trie.find(trie.find(root, 42), 43), NgramTrie::kNone);
  EXPECT_EQ(trie.node(trie.find(trie.find(root, 42), 142)).token, 142);
  EXPECT_EQ(trie.find_root("other"), NgramTrie::kNone);
  int children = 0, last = -1;
  for (auto id = trie.node(trie.find(root, 42)).first_child; id != NgramTrie::kNone;
       id = trie.node(id).next, ++children) {
    if (last < 0) last = trie.node(id).token;
  }
  EXPECT_EQ(children, 50);
  EXPECT_EQ(last, 4942) << "the child visited last stands first";
}

TEST(NgramTrie, DoesManyAtOnceAsOneByOne) {
  NgramTrie trie, other;
  std::mt19937 random(5);
  std::vector<NgramTrie::NodeId> nodes(13, NgramTrie::kNone), others = nodes;
  for (int step = 0; step < 2000; ++step) {
    nodes[0] = trie.root(""), others[0] = other.root("");
    const auto token = static_cast<int32_t>(random() % 20);
    auto found = nodes;
    trie.find_all(token, found);
    for (size_t i = 0; i < nodes.size(); ++i) EXPECT_EQ(found[i], other.find(others[i], token));
    trie.visit_all(token, nodes);
    for (size_t i = others.size(); i-- > 0;) others[i] = other.visit(others[i], token);
    ASSERT_EQ(nodes, others);
    for (size_t i = nodes.size(); i-- > 1;) nodes[i] = others[i] = nodes[i - 1];
  }
  EXPECT_EQ(trie.num_nodes(), other.num_nodes());
  EXPECT_EQ(trie.node(trie.find(trie.root(""), 7)).count, other.node(other.find(other.root(""), 7)).count);
}

TEST(NgramProposer, ContinuesTheRequestsOwnTextAsAChain) {
  NgramProposer proposer({});
  Ids prompt;
  for (int32_t i = 10; i < 40; ++i) prompt.push_back(i);
  prompt.insert(prompt.end(), {5, 13, 14, 15});
  const Proposal out = propose(proposer, {prompt});
  EXPECT_TRUE(out.is_chain());
  EXPECT_EQ(out.tokens, (Ids{16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26}));
}

TEST(NgramProposer, BranchesWhereTheTextDid) {
  NgramProposer proposer({});
  // After "1 2" came 3 twice and 4 once.
  const Proposal out = propose(proposer, {{1, 2, 3, 30, 1, 2, 4, 40, 1, 2, 3, 30, 9, 1, 2}});
  ASSERT_GE(out.size(), 2);
  EXPECT_FALSE(out.is_chain());
  const int likely = out.child(0, 3), other = out.child(0, 4);
  EXPECT_GT(likely, 0);
  EXPECT_GT(other, likely);
  EXPECT_GT(out.child(likely, 30), 0);
  for (int node = 1; node <= out.size(); ++node) EXPECT_LT(out.parent(node), node);
}

TEST(NgramProposer, ProposesChainsWithOneBranch) {
  NgramProposer proposer({.history = {}, .max_breadth = 1});
  const Proposal out = propose(proposer, {{1, 2, 3, 30, 1, 2, 4, 40, 1, 2, 3, 30, 9, 1, 2}});
  ASSERT_GT(out.size(), 0);
  EXPECT_TRUE(out.is_chain());
  EXPECT_EQ(out.tokens[0], 3);
}

TEST(NgramProposer, KnowsWhatOthersSaidUnlessTheirSaltDiffers) {
  NgramProposer proposer({});
  propose(proposer, {.prompt = {50, 51, 52, 53, 54, 55}, .request = 1});
  EXPECT_EQ(propose(proposer, {.prompt = {50, 51, 52}, .max_tokens = 3, .request = 2}).tokens, (Ids{53, 54, 55}));
  EXPECT_EQ(propose(proposer, {.prompt = {50, 51, 52}, .request = 3, .salt = "mine"}).size(), 0);
  proposer.forget(1);
  EXPECT_EQ(propose(proposer, {.prompt = {50, 51, 52}, .max_tokens = 3, .request = 4}).tokens, (Ids{53, 54, 55}))
      << "the text outlives its request";
}

TEST(NgramProposer, GuessesNothingBelowTheSmallestWindow) {
  NgramProposer proposer({.history = {.min_context = 3}});
  EXPECT_EQ(propose(proposer, {.prompt = {1, 2, 3, 4, 5, 9, 3, 4}}).size(), 0) << "two tokens agree";
  EXPECT_GT(propose(proposer, {.prompt = {1, 2, 3, 4, 5, 9, 2, 3, 4}, .request = 2}).size(), 0);
}

TEST(NgramProposer, KeepsToItsBounds) {
  for (const NgramMatchType type : {NgramMatchType::prob, NgramMatchType::bfs}) {
    NgramProposer proposer(
        {.history = {.max_context = 4, .capacity_nodes = 2000}, .match_type = type, .max_breadth = 3});
    std::mt19937 rng(3);
    Ids text;
    for (int i = 0; i < 3000; ++i) {
      text.push_back(static_cast<int32_t>(rng() % 7));
      const int room = static_cast<int>(rng() % 9);
      const Proposal out = propose(proposer, {.prompt = {1}, .output = text, .max_tokens = room});
      ASSERT_LE(out.size(), room);
      std::vector<int> branches(out.size() + 1);
      for (int node = 1; node <= out.size(); ++node) {
        ASSERT_LT(out.parent(node), node);
        ASSERT_EQ(out.child(out.parent(node), out.token(node)), node) << "siblings differ";
        ASSERT_LE(++branches[out.parent(node)], 3);
      }
    }
  }
}

TEST(NgramHistory, DropsTheOlderHalfWhenItIsFull) {
  NgramHistory history({.max_context = 3, .capacity_nodes = 4000});
  auto context = history.begin("");
  std::vector<NgramGuess> guesses;
  for (int32_t i = 0; i < 20000; ++i) {
    history.learn("", i, context);
    ASSERT_LE(history.num_nodes(), 4000u + 8);
  }
  auto again = history.begin("");
  for (const int32_t token : {19700, 19701, 19702}) history.follow(token, again);
  EXPECT_EQ(history.matched_tokens(again), 3) << "the younger half stays";
  history.guess(again, 4, guesses);
  ASSERT_FALSE(guesses.empty());
  EXPECT_EQ(guesses[0].token, 19703);
  auto gone = history.begin("");
  for (const int32_t token : {100, 101, 102}) history.follow(token, gone);
  EXPECT_EQ(history.matched_tokens(gone), 0);
}

TEST(NgramHistory, KeepsItsMemoryOnceBothHalvesWereFull) {
  NgramHistory history({.max_context = 3, .capacity_nodes = 4000});
  auto context = history.begin("");
  for (int32_t i = 0; i < 4000; ++i) history.learn("", i, context);
  const size_t full_bytes = history.reserved_bytes();
  for (int32_t i = 4000; i < 20000; ++i) {
    history.learn("", i, context);
    ASSERT_EQ(history.reserved_bytes(), full_bytes) << i;
  }
}

// A salt is up to two kilobytes that a client chose, with a node or two behind it.
TEST(NgramHistory, SaltsCountByTheirBytes) {
  NgramHistory history({.max_context = 3, .capacity_nodes = 4000});
  for (int i = 0; i < 2000; ++i) {
    const std::string salt = std::to_string(i) + std::string(1000, 's');
    auto context = history.begin(salt);
    history.learn(salt, 5, context);
    ASSERT_LE(history.num_salts() * 1000, 4000 * sizeof(NgramTrie::Node) + 2 * 1100) << i;
  }
  EXPECT_GT(history.num_salts(), 50u);
}

TEST(NgramHistory, GivesProbabilities) {
  NgramHistory history({});
  auto context = history.begin("");
  std::mt19937 rng(5);
  std::vector<NgramGuess> guesses;
  for (int i = 0; i < 2000; ++i) {
    history.guess(context, 100, guesses);
    double sum = 0;
    for (const NgramGuess& guess : guesses) {
      EXPECT_GT(guess.probability, 0);
      sum += guess.probability;
    }
    ASSERT_LE(sum, 1 + 1e-9);
    history.learn("", static_cast<int32_t>(rng() % 20), context);
  }
}

TEST(NgramProposer, StopsGuessingWhereGuessesNeverComeTrue) {
  NgramProposer proposer({});
  std::mt19937 rng(11);
  Ids text;
  int early = 0, late = 0;
  for (int i = 0; i < 4000; ++i) {
    text.push_back(static_cast<int32_t>(rng() % 30));
    const int size = propose(proposer, {.prompt = {1}, .output = text}).size();
    (i < 2000 ? early : late) += size;
  }
  EXPECT_LT(late, 2000) << "random tokens: about one node a step at most";
  EXPECT_GT(early, 0);
}

}  // namespace
}  // namespace warpweave
