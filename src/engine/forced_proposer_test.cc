#include "engine/forced_proposer.h"

#include <gtest/gtest.h>

#include "grammar/testing/grammar_texts.h"

namespace warpweave {
namespace {

// Proposes one token that no vocabulary has.
struct Guess : Proposer {
  void propose(const ProposalCall&, Proposal& out) override { out.tokens = {-7}; }
};

std::string text_of(const grammar::Vocabulary& vocabulary, std::span<const int32_t> ids) {
  std::string text;
  for (const int32_t id : ids) text += vocabulary.token(id);
  return text;
}

struct Asked {
  std::shared_ptr<const grammar::CompiledGrammar> grammar =
      grammar::testing::compile(grammar::testing::compact_schema(R"({"type":"object","properties":{"abc":{"type":"integer"},"name":{"const":"hello world"}},
      "required":["abc","name"],"additionalProperties":false})"));
  ForcedProposer proposer{std::make_unique<Guess>()};
  std::vector<int32_t> output;

  std::vector<int32_t> propose(int max_tokens) {
    Proposal out;
    proposer.propose({.input_ids = {}, .output_ids = output, .max_tokens = max_tokens, .request = 1, .grammar = grammar}, out);
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

TEST(ForcedProposer, LeavesChoicesToTheOtherProposer) {
  Asked asked;
  asked.write(R"({"abc":)");
  EXPECT_EQ(asked.propose(8), std::vector<int32_t>{-7});
  asked.write("1");
  EXPECT_EQ(asked.propose(8), std::vector<int32_t>{-7});  // another digit, or a comma
  asked.write(",");
  EXPECT_EQ(asked.propose_text(64), R"("name":"hello world"})");
}

TEST(ForcedProposer, ForgetsRequestsAndWhatIsNoText) {
  Asked asked;
  asked.write("nonsense");
  EXPECT_EQ(asked.propose(8), std::vector<int32_t>{-7});
  asked.proposer.forget(1);
  asked.output.clear();
  EXPECT_EQ(asked.propose_text(8), R"({"abc":)");
  asked.grammar = nullptr;
  EXPECT_EQ(asked.propose(8), std::vector<int32_t>{-7});
}

}  // namespace
}  // namespace warpweave
