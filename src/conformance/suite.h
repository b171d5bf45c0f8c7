// The conformance suite: cases x variants x KV formats -> results. What a backend's Caps claim of a
// case is run and must match the reference; what they do not claim must be refused by selection with
// the rule named. Backends that claim determinism are held to equal bits besides.
//
// Used by the tests, by `warpweave conformance`, and for plug-ins. Not thread-safe. Kernels are compiled and references
// computed ahead by `threads` threads; variants run one after the other on the calling thread and a ThreadTeam of as
// many.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "conformance/case.h"
#include "conformance/variant.h"

namespace warpweave::conformance {

enum class Check { reference, graphs, determinism, refusal };  // graphs: the reference, from a captured one
std::string_view check_name(Check check);

struct CheckResult {
  std::string variant;
  std::string case_name;
  KvFormat kv_format = KvFormat::bf16;
  Check check = Check::reference;
  bool passed = false;
  std::string text;                   // why it failed; for a refusal, the rule
  double error = 0;                   // reference: |out - ref| of the element nearest its bound, and that
  double bound = 0;
  double kv_error = 0;                // of rounding K and V to the format, apart from `error`;
                                      // see Problem::quantisation_error
  std::vector<std::string> features;  // what of the matrix this proves, see features_of
};

struct SuiteOptions {
  std::vector<Case> cases;              // against the reference
  std::vector<Case> determinism_cases;  // for equal bits
  int threads = 2;
  bool stop_at_first_failure = false;   // of each variant: it is dropped then
  std::function<void(const CheckResult&)> on_result;  // as they come; may be empty
};

// The committed cases; only those named `name`, if not empty.
SuiteOptions committed_cases(const std::string& name = {});

std::vector<CheckResult> run_suite(std::span<const Variant> variants, const SuiteOptions& options);

// Whether the variant's Caps claim the case, so that run_suite compares it with the reference.
bool claims_case(const Variant& variant, const Case& c, KvFormat format);

// Whether they say that it runs it with fp8 MMA: it is held to fp8_mma.h then.
bool runs_in_fp8(const Variant& variant, const Case& c, KvFormat format);

// The features a case exercises, in the words of the matrix: "decode", "KV fp8_e4m3", "page 64",
// "sliding window", ...
std::vector<std::string> features_of(const Case& c, KvFormat format, int page_size);

// What the case asks of selection.
ModelFacts model_facts_of(const Case& c, KvFormat format);

}  // namespace warpweave::conformance
