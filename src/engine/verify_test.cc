// Sampling through proposals keeps the target's distribution: chi-square over many draws, chains and trees, whatever
// is proposed; and bugs planted into the walk are found by the same test.
#include "engine/verify.h"

#include <gtest/gtest.h>

#include "engine/guess_draws.h"

namespace warpweave {
namespace {

using namespace guess_draws;

constexpr int kDraws = 100'000;

class Drawing {
 public:
  Drawing() : sampler_(team_) {
    pages_.assign(64, 0);
    for (size_t i = 0; i < pages_.size(); ++i) pages_[i] = static_cast<int32_t>(i);
  }

  // Of one step whose guesses are right by dice.
  std::vector<int32_t> draw_by_dice(const Plan& plan, double right, uint64_t seed) {
    walk_.use_dice(right);
    return step(plan, seed, 0, 1);
  }

  Counts draw(const Plan& plan) {
    Counts counts{};
    for (uint64_t seed = 0; seed < kDraws; ++seed) {
      std::vector<int32_t> tokens = step(plan, seed, 0, 1);
      // Where less than two were found, the next step goes on without proposals.
      if (tokens.size() < 2) {
        const std::vector<int32_t> more = step({.proposal = {}, .shown = {}}, seed, tokens[0], 2);
        tokens.push_back(more[0]);
      }
      ++counts[tokens[0]][tokens[1]];
    }
    return counts;
  }

 private:
  std::vector<int32_t> step(const Plan& plan, uint64_t seed, int32_t last, int position) {
    GenerateRequest request;
    request.sampling.temperature = 1;
    request.sampling.seed = seed;
    request.sampling.ignore_eos = true;
    SamplerState state(request, {}, 0);
    Step scheduled;
    StepRow& row = scheduled.rows.emplace_back();
    row.id = 1;
    row.start = position - 1;
    row.num_tokens = row.num_logits = 1;
    row.sample_slot = 0;
    row.max_proposals = plan.proposal.size();
    row.input_ids = &last;
    row.pages = pages_.data();
    row.num_pages = static_cast<int>(pages_.size());
    scheduled.num_tokens = scheduled.num_samples = 1;
    step_.proposals.assign(1, plan.proposal);
    step_.sample_slots.assign(1, 0);
    step_.builder.build(scheduled, step_.proposals);
    step_.sample_rows.assign(
        1, {.state = &state, .logits_row = 0, .position = static_cast<uint64_t>(position), .logprob_ids = {},
            .accept = plan.accept, .guesses = {}});
    values_.clear();
    best_.assign(plan.proposal.size() + 1, {});
    for (int node = 0; node <= plan.proposal.size(); ++node) {
      const int32_t token = node == 0 ? last : plan.shown ? plan.shown(node) : plan.proposal.token(node);
      const std::vector<float> row_logits = logits_after(token);
      values_.insert(values_.end(), row_logits.begin(), row_logits.end());
    }
    sample_and_verify(step_, {.values = values_, .best = best_, .vocab_size = kVocab}, sampler_, walk_);
    return step_.sampled_ids;
  }

  ThreadTeam team_{1};
  Sampler sampler_;
  VerifyWalk walk_;
  DeviceStep step_{BatchCache{1, 1, -1}};
  std::vector<int32_t> pages_;
  std::vector<float> values_;
  std::vector<RowBest> best_;
};

double chi_square(const Counts& counts) { return guess_draws::chi_square(counts, kDraws); }

TEST(Verify, ChainsKeepTheDistribution) { EXPECT_LT(chi_square(Drawing().draw({chain(), {}})), kOnceInAThousand); }

TEST(Verify, TreesKeepTheDistribution) { EXPECT_LT(chi_square(Drawing().draw({tree(), {}})), kOnceInAThousand); }

TEST(Verify, NothingProposedKeepsTheDistribution) { EXPECT_LT(chi_square(Drawing().draw({{}, {}})), kOnceInAThousand); }

// The test can fail: rows that show another token's logits, as a wrong mask or a row taken from a sibling would.
TEST(Verify, ADistributionThatIsNotTheTargetsIsFound) {
  const Proposal t = tree();
  EXPECT_GT(chi_square(Drawing().draw({t, [&](int node) { return t.token(node % t.size() + 1); }})), kOnceInAThousand);
  const Proposal c = chain();
  EXPECT_GT(chi_square(Drawing().draw({c, [](int) { return 0; }})), kOnceInAThousand);
}

TEST(Verify, TokensAreThoseWithoutProposals) {
  // The same seeds at the same positions: not only the distribution, each draw is the same.
  EXPECT_EQ(Drawing().draw({chain(), {}}), Drawing().draw({{}, {}}));
  EXPECT_EQ(Drawing().draw({tree(), {}}), Drawing().draw({{}, {}}));
}

// The first token of a tree with the guesses 2, 3 and 5 behind its root.
TEST(Verify, AThresholdKeepsAnyGuessOfANodeThatMuchMoreOften) {
  const std::vector<double> p = probabilities_after(0);
  const double all = p[2] + p[3] + p[5];
  const float acc = static_cast<float>((1 + all) / 2);
  const Counts counts = Drawing().draw({.proposal = tree(), .accept = {.single = 1, .acc = acc}});
  double kept = 0;
  for (const int a : {2, 3, 5}) {
    for (const int count : counts[a]) kept += static_cast<double>(count) / kDraws;
  }
  EXPECT_NEAR(kept, all / acc, 0.005);
  EXPECT_GT(all / acc, all + 0.02) << "else nothing was proven";
}

TEST(Verify, ByDiceAsManyGuessesAreRightAsTheBenchmarkAsksFor) {
  Drawing drawing;
  const Plan chain = {.proposal = {.tokens = {3, 1, 4}, .parents = {}}, .shown = {}};
  const std::vector<int32_t> all = drawing.draw_by_dice(chain, 1, 5);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(std::vector<int32_t>(all.begin(), all.begin() + 3), chain.proposal.tokens);
  EXPECT_EQ(drawing.draw_by_dice(chain, 0, 5).size(), 1u);
  double tokens = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed)
    tokens += static_cast<double>(drawing.draw_by_dice(chain, 0.5, seed).size());
  EXPECT_NEAR(tokens / 4000, 1.875, 0.06) << "1 + 1/2 + 1/4 + 1/8";
}

}  // namespace
}  // namespace warpweave
