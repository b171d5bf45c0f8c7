// Proposes what a request's grammar forces: names of members, brackets, quotes. A step then checks several such tokens
// at once (jump-forward), where another proposer has no say.
//
// The forced bytes are split into the longest tokens that the vocabulary has, since models are trained on those; a model
// that chooses other tokens for the same bytes is followed. On the engine's thread, as every Proposer. It keeps a
// matcher of its own for each request, so that it never touches the one that masks are made with.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "grammar/matcher.h"
#include "spec/proposer.h"

namespace warpweave {

class ForcedProposer : public Proposer {
 public:
  // `otherwise` guesses where nothing is forced.
  explicit ForcedProposer(std::unique_ptr<Proposer> otherwise) : otherwise_(std::move(otherwise)) {}

  void propose(const ProposalCall& call, Proposal& out) override;
  void forget(uint64_t request) override;
  void forget_all() override;

 private:
  struct Followed {
    explicit Followed(const std::shared_ptr<const grammar::CompiledGrammar>& grammar) : matcher(grammar) {}
    grammar::GrammarMatcher matcher;
    size_t tokens = 0;  // of the output that it has seen
    bool lost = false;  // the output is no text of the grammar: nothing is known of what follows
  };
  void propose_forced(const ProposalCall& call, Proposal& out);
  void learn_tokens(const grammar::Vocabulary& vocabulary);

  const std::unique_ptr<Proposer> otherwise_;
  std::unordered_map<uint64_t, Followed> followed_;
  std::shared_ptr<const grammar::CompiledGrammar> learned_from_;  // keeps the texts of ids_ alive
  std::unordered_map<std::string_view, int32_t> ids_;
};

}  // namespace warpweave
