// --speculative-algorithm NGRAM: guesses from the request's own text and from all that was served before.
//
// The tree of guesses grows either by the likeliest node first (PROB), until a node is not worth the time to check
// it, or level by level (BFS), with more branches the shorter the context that agreed. How much the estimates are
// worth is measured for each request: they count in proportion to how often the likeliest guess came true.
#pragma once

#include <unordered_map>
#include <vector>

#include "spec/ngram_history.h"
#include "spec/proposer.h"

namespace warpweave {

enum class NgramMatchType { bfs, prob };

struct NgramOptions {
  NgramHistoryOptions history;
  NgramMatchType match_type = NgramMatchType::prob;
  int min_breadth = 1;   // guesses that follow one node, where the longest context agreed
  int max_breadth = 10;  // and where only the shortest did; 1: chains
};

class NgramProposer : public Proposer {
 public:
  explicit NgramProposer(const NgramOptions& options) : options_(options), history_(options.history) {}

  void propose(const ProposalCall& call, Proposal& out) override;
  // Of the last proposal: how many of its nodes are expected to come true.
  double expected() const { return expected_; }
  void forget(uint64_t request) override { texts_.erase(request); }
  void forget_all() override { texts_.clear(); }

 private:
  struct Text {
    NgramHistory::Context context;
    size_t learned = 0;       // tokens of prompt and output
    // The likeliest guess of what follows the last token learned, and then what follows that one, as far as a proposal
    // asked: those from next_ahead on.
    std::vector<NgramGuess> ahead;
    size_t next_ahead = 0;
    // Of the likeliest guesses so far, a running mean: what they promised, and what came of them.
    double promised = 1, kept = 1;
  };
  struct Candidate {
    int parent;
    int32_t token;
    double probability;       // that everything up to it comes true
  };

  void learn(const ProposalCall& call, Text& text);
  void judge(int32_t token, Text& text);
  static void pass(int32_t token, Text& text);
  int breadth(const NgramHistory::Context& context) const;
  void expand(int node, double probability, const NgramHistory::Context& context);
  // From the candidates that follow the text.
  void grow_best_first(int max_tokens, double trust, Text& text, Proposal& out);
  void grow_by_levels(int max_tokens, Proposal& out);
  void add_node(const Candidate& candidate, Proposal& out);
  void expand_last(const Candidate& last, double trust, const Proposal& out);

  const NgramOptions options_;
  NgramHistory history_;
  std::unordered_map<uint64_t, Text> texts_;
  // Of the proposal at hand.
  std::vector<NgramHistory::Context> contexts_;  // by node
  std::vector<Candidate> candidates_;
  std::vector<NgramGuess> guesses_;
  double expected_ = 0;
};

}  // namespace warpweave
