// Holds a kernel to the reference: max|kernel - reference| <= 2 x max|same precision - reference| + slack, per request
// and tensor; nothing else may have been written. Kernels of other devices come behind an adapter that copies.
#pragma once

#include <functional>

#include "linear/testing/case.h"

namespace warpweave::testing_linear {

using NaiveFn = std::function<LinearAttnTruth(const LinearAttnCall&, LinearAttnPhase)>;

struct SuiteOptions {
  NaiveFn naive = linear_attn_same_precision;  // whose error sets the bound: round as the kernel's GEMMs do
  double factor = 2;
  double slack = 2e-6;                         // times the largest magnitude of the reference
};

struct CaseResult {
  std::string text;        // empty: passed
  double largest_share = 0;  // of error / bound, over everything compared
  bool passed() const { return text.empty(); }
};

// Whether the kernel claims what the case needs.
bool runs_case(const LinearAttnKernelCaps& caps, const LinearAttnCase& c);

// Each request of the case in a call of its own: the bits of outputs and states are those of one call for all. (Of drafts: the
// verify.)
CaseResult run_alone(LinearAttnKernelBase& kernel, const LinearAttnCase& c);

// Each request of an extend in calls that end at its checkpoints, each from the slot that the one before left: the bits of
// one call that leaves them on its way. For states in f32, which a call's end rounds no more than a checkpoint.
CaseResult run_in_pieces(LinearAttnKernelBase& kernel, const LinearAttnCase& c);

// The case's chains by target_verify and commit with all nodes accepted, and their tokens one by one by decode: the bits of outputs
// and states are the same.
CaseResult run_drafted_and_decoded(LinearAttnKernelBase& kernel, const LinearAttnCase& c);

CaseResult run_case(LinearAttnKernelBase& kernel, const LinearAttnCase& c, const SuiteOptions& options = {});

}  // namespace warpweave::testing_linear
