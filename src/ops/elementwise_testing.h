// What the tests of row kernels share: every tier that this CPU has.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ops/elementwise_dispatch.h"

namespace warpweave {

// A test file names its instantiation: INSTANTIATE_TEST_SUITE_P(All, EachTier, each_tier(), tier_of_test).
class EachTier : public testing::TestWithParam<CpuTier> {
 protected:
  const ElementwiseKernels& kernels = elementwise_kernels_of(GetParam());
};

inline auto each_tier() {
  std::vector<CpuTier> all = {CpuTier::scalar};
  if (cpu_info().tier >= CpuTier::avx2) all.push_back(CpuTier::avx2);
  if (cpu_info().tier >= CpuTier::avx512) all.push_back(CpuTier::avx512);
  return testing::ValuesIn(all);
}
inline std::string tier_of_test(const testing::TestParamInfo<CpuTier>& info) {
  return std::string(cpu_tier_name(info.param));
}

}  // namespace warpweave
