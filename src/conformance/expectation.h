// What a case's reference allows a backend's result to be: the fp64 result, and bounds from the error of plain
// attention of the same precision (docs/attention.md).
//
// Functions without state: any thread.
#pragma once

#include <vector>

#include "conformance/fp8_mma.h"
#include "conformance/problem.h"
#include "conformance/variant.h"

namespace warpweave::conformance {

// What a result may be away from the reference.
struct Expectation {
  Output output;
  double naive_bound = 0;  // by the error of same-precision naive attention
  double slack = 0;        // beside it
  double lse_bound = 0;
  Fp8Allowance fp8;        // beside both, per element; empty without fp8 arithmetic

  // A result that came back in 16 bits was rounded once as a whole.
  double bound(const Variant& variant) const {
    return naive_bound + (variant.rounds_output ? 2 : 1) * slack;
  }
};

// The element whose difference comes closest to its bound, or is furthest past it.
struct Worst {
  double difference = 0, bound = 0;
  bool passed() const { return difference <= bound; }
};

// `allowance`: beside `bound`, per element, or empty.
Worst worst_of(const std::vector<float>& a, const std::vector<float>& b, double bound,
               const std::vector<double>& allowance);

// 1 - cos(a, b); 0 for two vectors of zeros.
double cosine_difference(const std::vector<float>& a, const std::vector<float>& b);

// Runs the reference backend and the plain attention on the calling thread.
Expectation expect(const Problem& problem);

// The same of a backend that rounds q and probabilities to fp8. `rounded`: the problem with q rounded.
Expectation expect_fp8(const Expectation& plain, const Problem& rounded, const Fp8Mma& mma);

}  // namespace warpweave::conformance
