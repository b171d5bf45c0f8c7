#include "linear/conformance/conformance.h"

#include "conformance/report.h"
#include "linear/testing/suite.h"

namespace warpweave::testing_linear {
namespace {

using conformance::Check;
using conformance::CheckResult;

std::string column_of(const LinearAttnCase& c) {
  const std::string_view phase = c.phase == LinearAttnPhase::decode   ? "decode"
                                 : c.phase == LinearAttnPhase::extend ? "prefill"
                                                                      : "target verify";
  return conformance::linear_column(linear_attn_kind_name(c.shape.kind), phase);
}

}  // namespace

std::vector<CheckResult> run_linear_suite(std::span<const LinearFamily> families, std::span<const LinearAttnCase> cases,
                                          const std::function<void(const CheckResult&)>& on_result) {
  std::vector<CheckResult> results;
  for (const LinearFamily& family : families) {
    const auto kernel = family.create(false), captured = family.create(true);
    const LinearAttnKernelCaps& caps = kernel->caps();
    const auto add = [&](const LinearAttnCase& c, Check check, const CaseResult& found, const std::string& feature) {
      for (const conformance::Variant& name : family.names) {
        CheckResult result;
        result.variant = name.name;
        result.case_name = c.name;
        result.check = check;
        result.passed = found.passed();
        result.text = found.text;
        result.error = found.largest_share;
        result.bound = 1;
        result.features = {feature};
        if (on_result) on_result(result);
        results.push_back(std::move(result));
      }
    };
    for (const LinearAttnCase& c : cases) {
      if (!runs_case(caps, c)) continue;
      const SuiteOptions options = {.slack = family.slack(c)};
      add(c, Check::reference, run_case(*kernel, c, options), column_of(c));
      if (caps.deterministic) add(c, Check::determinism, run_alone(*kernel, c), "deterministic");
      if (caps.graph_capture) add(c, Check::graphs, run_case(*captured, c, options), "graph replay");
    }
  }
  return results;
}

}  // namespace warpweave::testing_linear
