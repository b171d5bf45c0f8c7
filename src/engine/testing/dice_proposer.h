// A proposer for tests that is right by dice, where it knows the answers.
#pragma once

#include <map>
#include <random>

#include "engine/testing/asking.h"
#include "spec/proposer.h"

namespace warpweave {

// Knows how each prompt goes on, and says so as often as the dice allow; else it says anything.
class DiceProposer : public Proposer {
 public:
  std::map<Ids, Ids> known;
  int right_percent = 60;
  bool trees = false;
  int vocab_size = 90;
  int64_t proposed = 0;

  void propose(const ProposalCall& call, Proposal& out) override {
    const Ids prompt(call.input_ids.begin(), call.input_ids.end());
    const auto found = known.find(prompt);
    const Ids answer = found == known.end() ? Ids() : found->second;
    const int count = static_cast<int>(rng_() % (call.max_tokens + 1));
    for (int node = 1; node <= count; ++node) {
      const int parent = trees ? static_cast<int>(rng_() % node) : node - 1;
      const size_t place = call.output_ids.size() + (parent > 0 ? out.depth(parent) : 0);
      const bool right = place < answer.size() && static_cast<int>(rng_() % 100) < right_percent;
      out.tokens.push_back(right ? answer[place] : static_cast<int32_t>(1 + rng_() % vocab_size));
      if (trees) out.parents.push_back(parent);
    }
    proposed += count;
  }

 private:
  std::mt19937 rng_{7};
};

}  // namespace warpweave
