#include "attention/cuda/divisor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace warpweave::cuda {
namespace {

TEST(Divisor, DividesAsTheOperatorDoes) {
  for (int value = 1; value < 70'000; value = value < 300 ? value + 1 : value * 3 + 1) {
    const Divisor divisor(value);
    const int64_t most = std::min<int64_t>((int64_t{1} << 32) / value - 1, INT32_MAX);
    for (int64_t quotient = 0; quotient * value <= most; quotient = quotient < 100 ? quotient + 1 : quotient * 2 + 7) {
      for (const int64_t x : {quotient * value - 1, quotient * value, quotient * value + 1}) {
        if (x < 0 || x > most) continue;
        ASSERT_EQ(divisor.divide(static_cast<int>(x)), x / value) << x << " / " << value;
      }
    }
    ASSERT_EQ(divisor.divide(static_cast<int>(most)), most / value) << most << " / " << value;
  }
}

}  // namespace
}  // namespace warpweave::cuda
