// The suite is tested by planted bugs: each must be caught, the sound kernel must pass.
#include "linear/testing/mutants.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "linear/testing/suite.h"

namespace warpweave::testing_linear {
namespace {

TEST(LinearAttnMutants, EachIsCaughtAndTheSoundOnePasses) {
  const std::vector<LinearAttnCase> cases = linear_attn_cases();
  int caught = 0;
  for (Mutation mutation : all_mutations()) {
    const auto kernel = make_mutant(mutation);
    std::string found;
    for (const LinearAttnCase& c : cases) {
      const CaseResult result = run_case(*kernel, c);
      if (mutation == Mutation::none) {
        EXPECT_TRUE(result.passed()) << c.name << ": " << result.text;
      } else if (!result.passed()) {
        found = c.name + ": " + result.text;
        break;
      }
    }
    if (mutation == Mutation::none) continue;
    EXPECT_FALSE(found.empty()) << mutation_name(mutation) << " passed the whole suite";
    std::printf("%-26s %s\n", std::string(mutation_name(mutation)).c_str(), found.c_str());
    caught += !found.empty();
  }
  EXPECT_EQ(caught, static_cast<int>(all_mutations().size()) - 1);
}

// A kernel whose calls do right and tell a failure all the same.
class Failing final : public LinearAttnKernelBase {
 public:
  const LinearAttnKernelCaps& caps() const override { return kernel_->caps(); }
  size_t workspace_bytes(const LinearAttnShape& shape, const LinearAttnLimits& limits) const override {
    return kernel_->workspace_bytes(shape, limits);
  }
  void decode(const LinearAttnCall& call) override { kernel_->decode(call); }
  void extend(const LinearAttnCall& call) override { kernel_->extend(call); }
  void target_verify(const LinearAttnCall& call) override { kernel_->target_verify(call); }
  void commit(const LinearAttnCall& call) override { kernel_->commit(call); }
  Status take_failure() override { return Status::internal("no launch"); }

 private:
  std::unique_ptr<LinearAttnKernelBase> kernel_ = make_mutant(Mutation::none);
};

TEST(LinearAttnSuite, FailuresThatTheKernelTellsAreSeen) {
  Failing kernel;
  const std::vector<LinearAttnCase> chains = chains_cases(LinearAttnKind::gdn);
  ASSERT_FALSE(chains.empty());
  for (const CaseResult& result : {run_case(kernel, chains[0]), run_alone(kernel, chains[0]), run_drafted_and_decoded(kernel, chains[0]),
                                   run_in_pieces(kernel, checkpoints_case(LinearAttnKind::gdn))}) {
    EXPECT_NE(result.text.find("no launch"), std::string::npos) << result.text;
  }
}

}  // namespace
}  // namespace warpweave::testing_linear
