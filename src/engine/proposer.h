// Where proposals come from: something that guesses how a request goes on.
//
// Called on the engine's thread before each step that has room for guesses. The text stays what it is without: a
// proposal counts only where the model's own choice is the same token.
#pragma once

#include <cstdint>
#include <span>

#include "batch/proposal.h"

namespace warpweave {

struct ProposalCall {
  std::span<const int32_t> input_ids;   // the prompt
  std::span<const int32_t> output_ids;  // what followed so far
  int max_tokens = 0;                   // at most so many
};

class Proposer {
 public:
  virtual ~Proposer() = default;
  // `out` is empty.
  virtual void propose(const ProposalCall& call, Proposal& out) = 0;
};

}  // namespace warpweave
