// The committed cases on every kernel family of this machine, and what a wrong kernel's report says.
#include "linear/conformance/conformance.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "conformance/report.h"
#include "linear/testing/mutants.h"
#include "linear/testing/suite.h"

namespace warpweave::testing_linear {
namespace {

using conformance::CellState;
using conformance::Check;
using conformance::CheckResult;

TEST(LinearConformance, EveryNameOfThisMachinePasses) {
  ThreadTeam team(2);
  const std::vector<LinearFamily> families = linear_families(team);
  ASSERT_FALSE(families.empty());
  std::vector<conformance::Variant> names;
  for (const LinearFamily& family : families) {
    EXPECT_FALSE(family.names.empty());
    names.insert(names.end(), family.names.begin(), family.names.end());
  }
  const std::vector<CheckResult> results = run_linear_suite(families, linear_attn_cases());
  for (const CheckResult& result : results) {
    EXPECT_TRUE(result.passed) << result.variant << ", " << check_name(result.check) << ", " << result.case_name << ": "
                               << result.text;
  }
  const auto report = conformance::make_report(names, results, "2026-01-31", "");
  EXPECT_GE(report.backends.size(), 2u);
  for (const conformance::BackendReport& backend : report.backends) {
    EXPECT_EQ(backend.kind, "linear");
    for (size_t i = 0; i < backend.cells.size(); ++i) {
      EXPECT_NE(backend.cells[i].state, CellState::claimed) << backend.name << ": no case proves column " << i;
      EXPECT_NE(backend.cells[i].state, CellState::failed) << backend.name << ": " << backend.cells[i].text;
    }
  }
}

// A family of one planted bug under the names of the CPU's.
LinearFamily family_of(Mutation mutation, ThreadTeam& team) {
  LinearFamily family = linear_families(team).front();
  family.create = [mutation](bool) { return make_mutant(mutation); };
  return family;
}

TEST(LinearConformance, APlantedBugFailsItsColumnAlone) {
  ThreadTeam team(1);
  const LinearFamily families[] = {family_of(Mutation::commit_one_less, team)};
  std::vector<LinearAttnCase> cases = linear_attn_cases();
  std::erase_if(cases, [](const LinearAttnCase& c) { return c.lengths.size() > 8; });
  const auto results = run_linear_suite(families, cases);
  const auto report = conformance::make_report(families[0].names, results, "2026-01-31", "");
  for (const conformance::BackendReport& backend : report.backends) {
    for (size_t i = 0; i < backend.cells.size(); ++i) {
      const std::string_view column = conformance::matrix_columns(AttentionKind::linear)[i].title;
      const bool verifies = column.ends_with("target verify");
      EXPECT_EQ(backend.cells[i].state == CellState::failed, verifies) << backend.name << ", " << column;
    }
  }
}

// Gives other bits in a batch of several requests than alone, by less than any bound sees.
class DependsOnItsBatch : public LinearAttnKernelBase {
 public:
  const LinearAttnKernelCaps& caps() const override { return kernel_->caps(); }
  size_t workspace_bytes(const LinearAttnShape& s, const LinearAttnLimits& l) const override {
    return kernel_->workspace_bytes(s, l);
  }
  void decode(const LinearAttnCall& call) override { nudge(call, &LinearAttnKernelBase::decode); }
  void extend(const LinearAttnCall& call) override { nudge(call, &LinearAttnKernelBase::extend); }
  void target_verify(const LinearAttnCall& call) override { nudge(call, &LinearAttnKernelBase::target_verify); }
  void commit(const LinearAttnCall& call) override { kernel_->commit(call); }

 private:
  void nudge(const LinearAttnCall& call, void (LinearAttnKernelBase::*phase)(const LinearAttnCall&)) {
    LinearAttnCall scaled = call;
    if (call.batch->num_requests > 1) scaled.scale *= 1.0000002f;
    (kernel_.get()->*phase)(scaled);
  }
  std::unique_ptr<LinearAttnKernelBase> kernel_ = make_mutant(Mutation::none);
};

TEST(LinearConformance, BitsOfTheBatchAreSeen) {
  const LinearAttnCase c{.name = "batch", .shape = {LinearAttnKind::gdn, 1, 2, 64, 64}, .lengths = {5, 1, -2, 9}};
  DependsOnItsBatch wrong;
  EXPECT_TRUE(run_case(wrong, c).passed()) << "within every bound";
  EXPECT_NE(run_alone(wrong, c).text.find("bits"), std::string::npos);
  EXPECT_TRUE(run_alone(*make_mutant(Mutation::none), c).passed());
}

}  // namespace
}  // namespace warpweave::testing_linear
