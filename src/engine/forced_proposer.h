// Proposes what a request's grammar forces: names of members, brackets, quotes. A step then checks several such tokens
// at once (jump-forward).
//
// The forced bytes are split into the longest tokens that the vocabulary has, since models are trained on those; a
// model may choose other tokens for the same bytes, and each guess that does not come true is a row computed in vain.
//
// The rule of how many are proposed.
// - Right: a guess comes true with the chance `right` of its request, a running mean that begins at that of all
// requests.
//   It is learned from every token that is written where one was forced, proposed or not, so finding out costs no rows.
// - Price: a step of n rows takes the time of step_cost_rows + n rows. A token that comes of a guess saves its own row
// and
//   its share of a step, 1 + step_cost_rows / n rows; a guess costs one. So those are proposed that come true, with all
//   before them, at a chance of n / (n + step_cost_rows) or more, and a little more.
//
// On the engine's thread. It keeps a matcher of its own for each request, so that it never touches the one that masks
// are made with.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "grammar/matcher.h"
#include "spec/proposer.h"

namespace warpweave {

class ForcedProposer : public Proposer {
 public:
  explicit ForcedProposer(double step_cost_rows) : step_cost_rows_(step_cost_rows) {}

  // How many rows the step to come has without proposals; to be told before each step that is planned or forecast.
  void set_rows(int rows);

  // Without a grammar, or where it leaves a choice, or where guesses do not come true often enough: nothing.
  void propose(const ProposalCall& call, Proposal& out) override;

  struct Forecast {
    int tokens = 0;         // that propose() would give
    double rows_saved = 0;  // by them, on an average
  };
  // `in_flight`: so many tokens more are being written; where they are forced, what propose() will give behind them.
  Forecast forecast(const ProposalCall& call, int in_flight);
  // What waiting for the tokens in flight costs, in rows.
  double wait_cost_rows() const;

  void forget(uint64_t request) override { followed_.erase(request); }
  void forget_all() override { followed_.clear(); }

 private:
  struct Followed {
    Followed(const std::shared_ptr<const grammar::CompiledGrammar>& grammar, double right_so_far)
        : matcher(grammar), right(right_so_far) {}
    grammar::GrammarMatcher matcher;
    size_t tokens = 0;            // of the output that it has seen
    std::vector<int32_t> forced;  // after those
    double right;
    bool lost = false;            // the output is no text of the grammar
  };
  Followed& follow(const ProposalCall& call);
  void read_output(const ProposalCall& call, Followed& followed);
  void learn(bool came_true, Followed& followed);
  static void split_forced(const ProposalCall& call, Followed& followed);
  int length(const Followed& followed, int available_tokens) const;
  double rows_per_token() const { return 1 + step_cost_rows_ / rows_; }

  const double step_cost_rows_;
  int rows_ = 1;
  double right_ = 0.9;            // of all requests; a guess of usual models, until measured
  std::unordered_map<uint64_t, Followed> followed_;
};

}  // namespace warpweave
