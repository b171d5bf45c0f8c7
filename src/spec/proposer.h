// Where proposals come from: something that guesses how a request goes on.
//
// Called on the engine's thread before each step that has room for guesses. The text stays what it is without: a
// proposal counts only where the model's own choice is the same token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "batch/proposal.h"

namespace warpweave::grammar {
class CompiledGrammar;
}

namespace warpweave {

struct ProposalCall {
  std::span<const int32_t> input_ids;   // the prompt
  std::span<const int32_t> output_ids;  // what followed so far
  int max_tokens = 0;                   // at most so many
  int max_drafts = 0;                   // of a draft model; no more than max_tokens
  int step_requests = 1;                // that the step is for
  bool only_found = false;              // nothing is drafted: whatever was found may do
  uint64_t request = 0;                 // the same in all calls for a request
  // Requests of different salts must not show in one another's proposals.
  std::string_view cache_salt = {};
  std::shared_ptr<const grammar::CompiledGrammar> grammar = {};  // what the output must match; or null
};

class Proposer {
 public:
  virtual ~Proposer() = default;
  // `out` is empty.
  virtual void propose(const ProposalCall& call, Proposal& out) = 0;
  // That request is gone, or all are.
  virtual void forget(uint64_t request) { (void)request; }
  virtual void forget_all() {}
};

}  // namespace warpweave
