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
  std::shared_ptr<const grammar::CompiledGrammar> grammar =
      grammar::testing::compile(grammar::testing::compact_schema(R"({"type":"object","properties":{"abc":{"type":"integer"},"name":{"const":"hello world"}},
      "required":["abc","name"],"additionalProperties":false})"));
  ForcedProposer proposer;
  std::vector<int32_t> output;

  std::vector<int32_t> propose(int max_tokens) {
    const ProposalCall call = {.input_ids = {}, .output_ids = output, .max_tokens = max_tokens, .request = 1, .grammar = grammar};
    Proposal out;
    const int count = proposer.count(call);
    proposer.propose(call, out);
    EXPECT_EQ(out.size(), count);
    return out.tokens;
  }
  std::string propose_text(int max_tokens) { return text_of(grammar->vocabulary(), propose(max_tokens)); }
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

// A model that writes the same bytes in other tokens is asked eight times.
TEST(ForcedProposer, LeavesARequestAloneWhoseTokensItDoesNotGuess) {
  Asked asked;
  asked.grammar = grammar::testing::compile({grammar::GrammarSpec::Kind::regex, ":{20}", {}});
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(asked.propose_text(2), "::::");
    asked.write(":");  // not the token "::"
  }
  EXPECT_TRUE(asked.propose(8).empty());
}

}  // namespace
}  // namespace warpweave
