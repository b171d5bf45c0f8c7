// The suite against planted bugs: it must fail each of them, and pass the same code without one.
#include "conformance/mutants.h"

#include <gtest/gtest.h>

#include <map>

#include "conformance/suite.h"

namespace warpweave::conformance {
namespace {

TEST(Mutants, EachIsCaughtAndTheSoundOnePasses) {
  SuiteOptions options = committed_cases();
  // The long cases repeat what shorter ones show, at many times the cost of this plain code.
  std::erase_if(options.cases, [](const Case& c) {
    int64_t pairs = 0;
    for (const Case::Request& r : c.requests) pairs += int64_t{r.q_len} * r.kv_len;
    return pairs * c.q_heads > 62000;
  });
  std::erase_if(options.determinism_cases, [](const Case& c) { return c.name != "window"; });
  ASSERT_GT(options.cases.size(), 40u);
  ASSERT_EQ(options.determinism_cases.size(), 1u);
  options.stop_at_first_failure = true;
  const std::vector<Variant> variants = mutant_variants();
  std::map<std::string, std::string> caught;  // by which case
  for (const CheckResult& result : run_suite(variants, options)) {
    if (!result.passed) caught.emplace(result.variant, result.case_name + ": " + result.text);
  }
  for (const Variant& variant : variants) {
    const auto found = caught.find(variant.name);
    if (variant.name == mutation_name(Mutation::none)) {
      EXPECT_EQ(found, caught.end()) << found->second;
    } else {
      EXPECT_NE(found, caught.end()) << variant.name << " passed the whole suite";
      if (found != caught.end()) std::printf("%-26s %s\n", variant.name.c_str(), found->second.c_str());
    }
  }
  EXPECT_GE(caught.size(), 44u);
}

}  // namespace
}  // namespace warpweave::conformance
