// Whether a request's draft model works, or only what earlier text says is checked, which costs no passes and leaves
// the caches to the model's weights: each has its turn, and then the one whose tokens took less time.
#pragma once

namespace warpweave {

class LookupTurns {
 public:
  static constexpr int kTurnSteps = 96;
  static constexpr int kBetweenTrials = 12;  // turns, then the other way is tried for one
  static constexpr double kLeastGain = 1.02;

  // Whether nothing is drafted in the coming step.
  bool alone() const { return alone_; }
  // A step's tokens and time. `plain_us`: what a token takes without any guess.
  void measured(int tokens, double step_us, double plain_us);

 private:
  struct Way {
    double us_per_token = 0;
    bool known = false;
    void add(double us);
  };
  Way drafting_, looking_;
  bool alone_ = false;
  int steps_ = 0, tokens_ = 0, turns_ = 0;
  double us_ = 0;
};

}  // namespace warpweave
