// The CPU kernels of every tier that this machine has, on every case; what the cases do not show.
#include "linear/cpu/cpu_linear_attn.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>

#include "linear/testing/suite.h"

namespace warpweave::testing_linear {
namespace {

std::vector<CpuTier> tiers() {
  std::vector<CpuTier> list;
  for (CpuTier tier : {CpuTier::scalar, CpuTier::avx2, CpuTier::avx512}) {
    if (tier <= cpu_info().tier) list.push_back(tier);
  }
  return list;
}

TEST(CpuLinearAttn, EveryCaseOnEveryTier) {
  ThreadTeam team(3);
  for (CpuTier tier : tiers()) {
    const auto kernel = make_cpu_linear_attn(team, tier);
    double largest = 0;
    std::string at;
    for (const LinearAttnCase& c : linear_attn_cases()) {
      ASSERT_TRUE(runs_case(kernel->caps(), c)) << c.name;
      const CaseResult result = run_case(*kernel, c);
      EXPECT_TRUE(result.passed()) << cpu_tier_name(tier) << ", " << c.name << ": " << result.text;
      if (result.largest_share > largest) largest = result.largest_share, at = c.name;
    }
    std::printf("%s: largest share of a bound %.3f in %s\n", std::string(cpu_tier_name(tier)).c_str(), largest, at.c_str());
    EXPECT_GT(largest, 0.2) << "a bound that is never approached proves little";
  }
}

}  // namespace
}  // namespace warpweave::testing_linear
