// Proposes what a request's grammar forces: names of members, brackets, quotes. A step then checks several such tokens
// at once (jump-forward).
//
// The forced bytes are split into the longest tokens that the vocabulary has, since models are trained on those; a model
// that chooses other tokens for the same bytes is followed, and left alone after some wrong guesses in a row. On the engine's
// thread. It keeps a matcher of its own for each request, so that it never touches the one that masks are made with.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "grammar/matcher.h"
#include "spec/proposer.h"

namespace warpweave {

class ForcedProposer : public Proposer {
 public:
  // Without a grammar, or where it leaves a choice: nothing.
  void propose(const ProposalCall& call, Proposal& out) override;
  // How many tokens propose() would give.
  int count(const ProposalCall& call);
  void forget(uint64_t request) override { followed_.erase(request); }
  void forget_all() override { followed_.clear(); }

 private:
  struct Followed {
    explicit Followed(const std::shared_ptr<const grammar::CompiledGrammar>& grammar) : matcher(grammar) {}
    grammar::GrammarMatcher matcher;
    size_t tokens = 0;            // of the output that it has seen
    std::vector<int32_t> forced;  // after those
    size_t proposed_at = 0;       // tokens of the output when `first_proposed` was proposed
    int32_t first_proposed = -1;
    int wrong_guesses = 0;        // one after another
    bool lost = false;            // the output is no text of the grammar, or guesses do not come true
  };
  Followed& follow(const ProposalCall& call);
  static void read_output(const ProposalCall& call, Followed& followed);
  static void split_forced(const ProposalCall& call, Followed& followed);

  std::unordered_map<uint64_t, Followed> followed_;
};

}  // namespace warpweave
