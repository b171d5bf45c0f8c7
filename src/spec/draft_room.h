// What the engine puts into a step where a draft model guesses: room, which the device fills (Drafter), or what earlier
// text says comes next, where that promises more tokens than a draft, which costs passes.
#pragma once

#include <optional>

#include "spec/draft_options.h"
#include "spec/ngram_proposer.h"
#include "spec/proposer.h"

namespace warpweave {

// Rows of a step in which guesses are looked up: a CPU's GEMMs take little longer for six rows than for one, and from
// there on more for each. So one request gets five found tokens at most, two get two each, and four none.
inline constexpr int kCheapRows = 6;
inline constexpr int kMostFoundTokens = kCheapRows - 1;

class DraftRoom : public Proposer {
 public:
  explicit DraftRoom(const DraftOptions& options);

  void propose(const ProposalCall& call, Proposal& out) override;
  void forget(uint64_t request) override;
  void forget_all() override;

 private:
  const DraftOptions options_;
  std::optional<NgramProposer> lookup_;
};

}  // namespace warpweave
