#include "conformance/expectation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/registry.h"
#include "base/threads.h"
#include "conformance/naive.h"

namespace warpweave::conformance {
namespace {

double max_abs(const std::vector<float>& values) {
  double top = 0;
  for (float v : values) {
    if (std::isfinite(v)) top = std::max<double>(top, std::fabs(v));
  }
  return top;
}

// 0 for equal infinities; infinite where one of both is, or is NaN.
double difference_of(float a, float b) {
  if (a == b) return 0;
  const double difference = std::fabs(static_cast<double>(a) - b);
  return difference <= 1e30 ? difference : std::numeric_limits<double>::infinity();
}

double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double top = 0;
  for (size_t i = 0; i < a.size(); ++i) top = std::max(top, difference_of(a[i], b[i]));
  return top;
}

// Half the rounding of a 16-bit result: what f32 results of 16-bit inputs are held to.
double slack_of(KvFormat format) {
  return format == KvFormat::f32 ? 0x1p-22 : format == KvFormat::f16 ? 0x1p-12 : 0x1p-9;
}

constexpr double kLseSlack = 1e-4;  // relative, absolute below 1

}  // namespace

double cosine_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    ab += static_cast<double>(a[i]) * b[i];
    aa += static_cast<double>(a[i]) * a[i];
    bb += static_cast<double>(b[i]) * b[i];
  }
  return aa + bb > 0 ? 1 - 2 * ab / (aa + bb) : 0;
}

Worst worst_of(const std::vector<float>& a, const std::vector<float>& b, double bound,
               const std::vector<double>& allowance) {
  if (allowance.empty() || a.size() != b.size()) return {max_difference(a, b), bound};
  Worst worst = {0, bound};
  double share = -1;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = difference_of(a[i], b[i]), own = bound + allowance[i];
    if (difference <= share * own) continue;
    worst = {difference, own};
    share = own > 0 ? difference / own : std::numeric_limits<double>::infinity();
  }
  return worst;
}

// The reference's result, computed by the calling thread alone.
static Output run_reference(const Problem& problem) {
  ThreadTeam caller(1);
  const auto reference = create_backend("reference", {&caller, 0, problem.page_size()});
  return problem.run(**reference);
}

Expectation expect(const Problem& problem) {
  Expectation expected;
  expected.output = run_reference(problem);
  const Output naive = naive_attention(problem);
  const double factor = problem.shape().softcap > 0 ? 3 : 2;
  expected.naive_bound = factor * max_difference(naive.out, expected.output.out);
  expected.slack = slack_of(problem.kv_format()) * max_abs(expected.output.out);
  expected.lse_bound = factor * max_difference(naive.lse, expected.output.lse) +
                       kLseSlack * std::max(1.0, max_abs(expected.output.lse));
  return expected;
}

Expectation expect_fp8(const Expectation& plain, const Problem& rounded, const Fp8Mma& mma) {
  Expectation expected = plain;
  expected.output = run_reference(rounded);
  expected.fp8 = fp8_allowance(rounded, mma);
  return expected;
}

}  // namespace warpweave::conformance
