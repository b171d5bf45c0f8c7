// What fp8 arithmetic (Caps::fp8_mma) may add to a backend's error, per output element, from the
// reference's own numbers: a worst case, without statistics. docs/attention.md derives it.
//
// The rounding of q is prescribed to the bit, so the reference is computed on queries rounded in the same
// way, and only the rounding of probabilities and the short sums are left to bound.
#pragma once

#include <span>
#include <vector>

#include "attention/caps.h"
#include "conformance/problem.h"

namespace warpweave::conformance {

// One row of one head of q as Fp8Mma describes, for a model of bf16.
void round_query_to_e4m3(std::span<float> row);

// A sum that keeps `bits` leading bits of its largest term: the other terms lose what lies below.
float add_short(float sum, std::span<const float> terms, int bits);

struct Fp8Allowance {
  std::vector<double> out;  // as Output::out
  std::vector<double> lse;
};

// `problem` has rounded queries.
Fp8Allowance fp8_allowance(const Problem& problem, const Fp8Mma& mma);

}  // namespace warpweave::conformance
