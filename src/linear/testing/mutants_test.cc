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

}  // namespace
}  // namespace warpweave::testing_linear
