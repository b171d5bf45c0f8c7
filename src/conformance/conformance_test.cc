// The committed cases on every variant of this machine: what is claimed must pass, what is not must
// be refused with the rule named.
#include <gtest/gtest.h>

#include "conformance/suite.h"

namespace warpweave::conformance {
namespace {

void expect_all_pass(SuiteOptions options) {
  const std::vector<Variant> variants = all_variants();
  const std::vector<CheckResult> results = run_suite(variants, options);
  EXPECT_FALSE(results.empty());
  for (const CheckResult& result : results) {
    EXPECT_TRUE(result.passed) << result.variant << ", " << check_name(result.check) << ", "
                               << result.case_name << ", KV " << kv_format_name(result.kv_format)
                               << ": " << result.text;
  }
}

class Conformance : public testing::TestWithParam<Case> {};
TEST_P(Conformance, MatchesReference) {
  SuiteOptions options;
  options.cases = {GetParam()};
  expect_all_pass(std::move(options));
}
INSTANTIATE_TEST_SUITE_P(Cases, Conformance, testing::ValuesIn(committed_cases().cases),
                         [](const auto& info) { return info.param.name; });

class Determinism : public testing::TestWithParam<Case> {};
TEST_P(Determinism, SameBits) {
  SuiteOptions options;
  options.determinism_cases = {GetParam()};
  expect_all_pass(std::move(options));
}
INSTANTIATE_TEST_SUITE_P(Cases, Determinism, testing::ValuesIn(committed_cases().determinism_cases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace warpweave::conformance
