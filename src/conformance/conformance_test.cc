// Each case, for each KV format: the reference once, then every backend against it.
#include <gtest/gtest.h>

#include <cmath>

#include "base/threads.h"
#include "naive.h"
#include "problem.h"
#include "variants.h"

namespace warpweave::conformance {
namespace {

constexpr uint64_t kSeed = 20260121;

double max_abs(const std::vector<float>& values) {
  double top = 0;
  for (float v : values) {
    if (std::isfinite(v)) top = std::max<double>(top, std::fabs(v));
  }
  return top;
}

// Infinite and NaN values must be equal in kind; their difference then counts as 0.
double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double top = 0;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (a[i] == b[i]) continue;
    const double difference = std::fabs(static_cast<double>(a[i]) - b[i]);
    if (!(difference <= 1e30)) return std::numeric_limits<double>::infinity();
    top = std::max(top, difference);
  }
  return top;
}

// One rounding of a result in the pool's format.
double unit_roundoff(KvFormat format) {
  return format == KvFormat::bf16 ? 0x1p-9 : format == KvFormat::f16 ? 0x1p-12 : 0x1p-22;
}

class Conformance : public testing::TestWithParam<Case> {};

TEST_P(Conformance, MatchesReference) {
  const Case& c = GetParam();
  ThreadTeam team(2);
  const BackendContext context = {&team, 0, c.page_size};
  auto reference = create_backend("reference", context);
  ASSERT_TRUE(reference.ok());
  for (KvFormat format : c.kv_formats) {
    const Problem problem(c, format, kSeed, c.page_size);
    const Output expected = problem.run(**reference);
    const Output naive = naive_attention(problem);
    ASSERT_TRUE(std::isfinite(max_difference(naive.out, expected.out)));
    const double factor = c.softcap > 0 ? 3 : 2;
    const double bound = factor * max_difference(naive.out, expected.out) +
                         unit_roundoff(format) * max_abs(expected.out);
    const double lse_bound = factor * max_difference(naive.lse, expected.lse) +
                             1e-6 * std::max(1.0, max_abs(expected.lse));
    for (const Variant& variant : all_variants()) {
      SCOPED_TRACE(c.name + " kv=" + std::string(kv_format_name(format)) + " " + variant.name);
      const auto backend = variant.create(context);
      const Output output = problem.run(*backend);
      EXPECT_LE(max_difference(output.out, expected.out), bound);
      EXPECT_LE(max_difference(output.lse, expected.lse), lse_bound);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mha, Conformance,
                         testing::ValuesIn(read_cases("src/conformance/cases/mha.txt")),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace warpweave::conformance
