// How the suite runs what a backend claims: drafts on a backend of decode alone, captured graphs.
#include "conformance/suite.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "attention/registry.h"
#include "conformance/report.h"

namespace warpweave::conformance {
namespace {

Variant torch_native_variant(const Caps& caps) {
  Variant variant = {"fake", "cpu", {"A device", DeviceArch::cpu_x86_64, 0}, &caps, nullptr, {}, 1};
  variant.create = [](const BackendContext& context) {
    auto backend = create_backend("torch_native", context);
    return backend.ok() ? std::move(backend).value() : nullptr;
  };
  return variant;
}

Caps torch_native_caps() {
  for (const Caps* caps : written_backends()) {
    if (caps->name == "torch_native" && caps->kinds.has(AttentionKind::mha) && caps->archs.has(DeviceArch::cpu_x86_64))
      return *caps;
  }
  return {};
}

SuiteOptions cases_named(std::initializer_list<const char*> names) {
  SuiteOptions options;
  for (const char* name : names) {
    for (Case c : committed_cases(name).cases) {
      c.kv_formats = {KvFormat::bf16};
      options.cases.push_back(std::move(c));
    }
  }
  return options;
}

int count(const std::vector<CheckResult>& results, Check check, std::string_view feature = {}) {
  return static_cast<int>(std::count_if(results.begin(), results.end(), [&](const CheckResult& result) {
    return result.passed && result.check == check &&
           (feature.empty() ||
            std::find(result.features.begin(), result.features.end(), feature) != result.features.end());
  }));
}

// It verifies drafts when --speculative-attention-mode is decode: trees and what stands before them.
TEST(Suite, DraftsRunOnABackendOfDecodeAlone) {
  Caps caps = torch_native_caps();
  caps.phases = {AttentionPhase::decode};
  const Variant variants[] = {torch_native_variant(caps)};
  auto results = run_suite(variants, cases_named({"tree_random", "tree_chain", "decode_many", "page_16"}));
  ASSERT_EQ(results.size(), 4u);
  for (const CheckResult& result : results) EXPECT_TRUE(result.passed) << result.case_name << ": " << result.text;
  EXPECT_EQ(count(results, Check::reference, "draft tree"), 1);
  EXPECT_EQ(count(results, Check::reference, "draft chain"), 1);
  EXPECT_EQ(count(results, Check::reference, "cached prefix"), 2);
  EXPECT_EQ(count(results, Check::refusal), 1) << "a prompt is still refused";

  caps.spec = SpecSupport::chain;
  results = run_suite(variants, cases_named({"tree_random", "tree_chain"}));
  EXPECT_EQ(count(results, Check::refusal), 1);
  EXPECT_EQ(count(results, Check::reference, "draft chain"), 1);
}

TEST(Suite, GraphsAreHeldToTheReference) {
  Caps caps = torch_native_caps();
  Variant variant = torch_native_variant(caps);
  bool wrong = false;
  variant.run_graph = [&](const Problem& problem, AttentionBackend& backend, const std::vector<Slice>& slices,
                          bool decode) {
    Output output = problem.run(backend, slices, decode);
    if (wrong) output.out[0] += 1;
    return output;
  };
  const Variant variants[] = {variant};
  const SuiteOptions options = cases_named({"decode_many", "tree_chain", "page_16"});
  EXPECT_EQ(count(run_suite(variants, options), Check::graphs), 0) << "the Caps claim none";
  caps.graph_capture = true;
  auto results = run_suite(variants, options);
  EXPECT_EQ(count(results, Check::graphs, "graph replay"), 2) << "a prefill is not captured";
  const DeviceReport report = make_report(variants, results, "2026-01-31", "abc");
  EXPECT_EQ(report.backends[0].cells.back().state, CellState::proven);
  wrong = true;
  results = run_suite(variants, options);
  EXPECT_EQ(count(results, Check::graphs), 0);
  EXPECT_EQ(make_report(variants, results, "2026-01-31", "abc").backends[0].cells.back().state, CellState::failed);
}

}  // namespace
}  // namespace warpweave::conformance
