#include "engine/forced_proposer.h"

#include <gtest/gtest.h>

#include "grammar/testing/grammar_texts.h"

namespace warpweave {
namespace {

std::string text_of(const grammar::Vocabulary& vocabulary, std::span<const int32_t> ids) {
  std::string text;
  for (const int32_t id : ids) text += vocabulary.token(id);
  return text;
}

struct Asked {
  std::shared_ptr<const grammar::CompiledGrammar> grammar = grammar::testing::compile(grammar::testing::compact_schema(
      R"({"type":"object","properties":{"abc":{"type":"integer"},"name":{"const":"hello world"}},
      "required":["abc","name"],"additionalProperties":false})"));
  ForcedProposer proposer{4};
  std::vector<int32_t> output;
  uint64_t request = 1;

  ProposalCall call(int max_tokens) const {
    return {.input_ids = {}, .output_ids = output, .max_tokens = max_tokens, .request = request, .grammar = grammar};
  }
  std::vector<int32_t> propose(int max_tokens) {
    Proposal out;
    const int forecast = proposer.forecast(call(max_tokens), 0).tokens;
    proposer.propose(call(max_tokens), out);
    EXPECT_EQ(out.size(), forecast);
    return out.tokens;
  }
  std::string propose_text(int max_tokens) { return text_of(grammar->vocabulary(), propose(max_tokens)); }
  void write_token(std::string_view token) { output.push_back(grammar->vocabulary().longest_beginning(token)); }
  void write(std::string_view text) {
    for (const char c : text) output.push_back(static_cast<uint8_t>(c));  // the first tokens are the bytes
  }
};

TEST(ForcedProposer, ProposesWhatTheGrammarForcesInLongTokens) {
  Asked asked;
  EXPECT_EQ(asked.propose_text(8), R"({"abc":)");
  EXPECT_EQ(asked.propose(8).size(), 3u);  // {" abc ":
  EXPECT_EQ(asked.propose(2).size(), 2u);
  asked.write(R"({"a)");
  EXPECT_EQ(asked.propose_text(8), R"(bc":)");
}

TEST(ForcedProposer, ProposesNothingWhereThereIsAChoice) {
  Asked asked;
  asked.write(R"({"abc":)");
  EXPECT_TRUE(asked.propose(8).empty());
  asked.write("1");
  EXPECT_TRUE(asked.propose(8).empty());  // another digit, or a comma
  asked.write(",");
  EXPECT_EQ(asked.propose_text(64), R"("name":"hello world"})");
}

TEST(ForcedProposer, ForgetsRequestsAndWhatIsNoText) {
  Asked asked;
  asked.write("nonsense");
  EXPECT_TRUE(asked.propose(8).empty());
  asked.proposer.forget(1);
  asked.output.clear();
  EXPECT_EQ(asked.propose_text(8), R"({"abc":)");
  asked.grammar = nullptr;
  EXPECT_TRUE(asked.propose(8).empty());
}

// A guess costs a row and saves one with its share of a step: of 4 rows in its price it is worth 5 where one row runs,
// and next to nothing beside 64.
TEST(ForcedProposer, ProposesWhatIsWorthItsRows) {
  Asked asked;
  asked.grammar = grammar::testing::compile({grammar::GrammarSpec::Kind::regex, "(::){90}", {}});
  const auto proposed = [&](int rows) {
    asked.proposer.set_rows(rows);
    return asked.propose(15).size();
  };
  EXPECT_EQ(proposed(1), 14u);   // until it is known, 9 of 10 come true: 0.9^14 > 1.05 / 5 > 0.9^15
  EXPECT_EQ(proposed(8), 3u);    // 0.9^3 > 1.05 * 8 / 12 > 0.9^4
  EXPECT_EQ(proposed(64), 0u);   // 1.05 * 64 / 68 > 0.9
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(proposed(64), 0u);
    asked.write_token("::");     // as would have been guessed: it is learned all the same
  }
  EXPECT_EQ(proposed(8), 15u);
  for (int i = 0; i < 20; ++i) {
    proposed(64);
    asked.write_token("::");
  }
  EXPECT_GE(proposed(64), 1u);   // now nearly all come true
}

// A model that writes the same bytes in other tokens is left alone, the others of its kind, too, and asked again when
// it writes what would have been guessed.
TEST(ForcedProposer, LeavesRequestsAloneWhoseTokensItDoesNotGuess) {
  Asked asked;
  asked.grammar = grammar::testing::compile({grammar::GrammarSpec::Kind::regex, ":{200}", {}});
  asked.proposer.set_rows(1);
  size_t last = 99;
  int guesses = 0;
  for (int i = 0; i < 60; ++i) {
    const size_t now = asked.propose(15).size();
    EXPECT_LE(now, last);
    last = now;
    guesses += static_cast<int>(now);
    asked.write(":");  // not the token "::"
  }
  EXPECT_EQ(last, 0u);
  EXPECT_LT(guesses, 70);
  asked.request = 2;
  asked.output.clear();
  EXPECT_LT(asked.propose(15).size(), 5u);
  asked.request = 1;
  asked.output.assign(60, ':');
  for (int i = 0; i < 10; ++i) {
    asked.propose(15);
    asked.write_token("::");
  }
  EXPECT_GE(asked.propose(15).size(), 2u);
}

// Behind a token in flight guesses are made only where it is the one that was forced.
TEST(ForcedProposer, ForecastsTheRowsSaved) {
  Asked asked;
  asked.proposer.set_rows(1);
  const auto now = asked.proposer.forecast(asked.call(8), 0), later = asked.proposer.forecast(asked.call(8), 1);
  EXPECT_EQ(now.tokens, 3);  // {" abc ":
  EXPECT_NEAR(now.rows_saved, 5 * (0.9 + 0.81 + 0.729) - 3, 1e-9);
  EXPECT_EQ(later.tokens, 2);
  EXPECT_NEAR(later.rows_saved, 5 * (0.81 + 0.729) - 2 * 0.9, 1e-9);
  EXPECT_NEAR(asked.proposer.wait_cost_rows(), 0.5, 1e-9);
  EXPECT_EQ(asked.proposer.forecast(asked.call(8), 9).tokens, 0);
}

}  // namespace
}  // namespace warpweave
