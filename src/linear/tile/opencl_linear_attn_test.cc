// The tile kernels on an OpenCL CPU, on every case; what the cases do not show.
#include "linear/tile/opencl_linear_attn.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>

#include "attention/tile/opencl_attention.h"
#include "device/opencl/testing/failing_calls.h"
#include "linear/testing/suite.h"

namespace warpweave::testing_linear {
namespace {

constexpr int kThreads = 2;

class OpenClLinearAttn : public testing::Test {
 protected:
  void SetUp() override {
    if (const Status status = tile::probe_opencl(Probe::thorough); !status.ok()) GTEST_SKIP() << status.message();
  }
};

TEST_F(OpenClLinearAttn, EveryCase) {
  const auto kernel = make_opencl_linear_attn(kThreads);
  double largest = 0;
  std::string at;
  for (const LinearAttnCase& c : linear_attn_cases()) {
    ASSERT_TRUE(runs_case(kernel->caps(), c)) << c.name;
    const CaseResult result = run_case(*kernel, c);
    EXPECT_TRUE(result.passed()) << c.name << ": " << result.text;
    if (result.largest_share > largest) largest = result.largest_share, at = c.name;
  }
  std::printf("largest share of a bound %.3f in %s\n", largest, at.c_str());
  EXPECT_GT(largest, 0.2) << "a bound that is never approached proves little";
}

TEST_F(OpenClLinearAttn, BitsDoNotDependOnTheBatch) {
  const auto kernel = make_opencl_linear_attn(kThreads);
  for (const LinearAttnCase& c : linear_attn_cases()) {
    if (c.lengths.size() > 8) continue;
    const CaseResult result = run_alone(*kernel, c);
    EXPECT_TRUE(result.passed()) << c.name << ": " << result.text;
  }
}

TEST_F(OpenClLinearAttn, CheckpointsAreTheStatesOfCallsThatEndThere) {
  const auto kernel = make_opencl_linear_attn(kThreads);
  for (LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    const CaseResult result = run_in_pieces(*kernel, checkpoints_case(kind));
    EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << ": " << result.text;
  }
}

TEST_F(OpenClLinearAttn, DraftsCanHaveTheBitsOfDecode) {
  const auto kernel = make_opencl_linear_attn(kThreads);
  for (LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (const LinearAttnCase& c : chains_cases(kind)) {
      const CaseResult result = run_drafted_and_decoded(*kernel, c);
      EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << ", " << c.name << ": " << result.text;
    }
  }
}

// Each launch of a call and the wait for them: what fails is said once, and the next call has nothing of it.
TEST_F(OpenClLinearAttn, AFailedCallIsSaidOnceAndTheNextOneRuns) {
  const auto kernel = make_opencl_linear_attn(kThreads);
  opencl::FailingCalls driver;
  std::set<LinearAttnPhase> seen;
  for (const LinearAttnCase& c : linear_attn_cases()) {
    if (!seen.insert(c.phase).second) continue;
    ASSERT_TRUE(kernel->prepare(c.shape).ok());
    int failures = 0;
    for (int call = 1;; ++call) {
      driver.fail_in(call);
      const CaseResult failing = run_case(*kernel, c);
      if (!driver.failed()) break;
      ++failures;
      EXPECT_NE(failing.text.find("CL_OUT_OF_RESOURCES"), std::string::npos) << c.name << ": " << failing.text;
      EXPECT_TRUE(kernel->take_failure().ok());
      const CaseResult next = run_case(*kernel, c);
      EXPECT_TRUE(next.passed()) << c.name << ": " << next.text;
    }
    EXPECT_GE(failures, 2) << c.name;
  }
}

// The errors of 20,000 tokens that forget next to nothing.
TEST_F(OpenClLinearAttn, LongSequencesDoNotDrift) {
  const auto kernel = make_opencl_linear_attn(kThreads);
  for (LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (Decay decay : {Decay::near_one, Decay::mixed}) {
      const LinearAttnCase c{.name = "long", .shape = {kind, 1, 1, 16, 32}, .lengths = {20000}, .decay = decay};
      const CaseResult result = run_case(*kernel, c);
      EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << ": " << result.text;
    }
  }
}

}  // namespace
}  // namespace warpweave::testing_linear
