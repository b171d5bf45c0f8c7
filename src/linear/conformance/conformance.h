// Conformance of linear attention: every case of testing/case.h on every family of families.h, against the reference in
// f64; where Caps claim it, each request's bits alone against those in its batch, and the case again from a captured
// graph. Results are in the words of conformance/report.h, so that reports and the matrix take them as they take
// attention's.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "conformance/suite.h"
#include "linear/conformance/families.h"

namespace warpweave::testing_linear {

// In the order of families and cases: a result for every name of a family.
std::vector<conformance::CheckResult> run_linear_suite(
    std::span<const LinearFamily> families, std::span<const LinearAttnCase> cases,
    const std::function<void(const conformance::CheckResult&)>& on_result = {});

}  // namespace warpweave::testing_linear
