// The kernel families of linear attention on the devices of this machine, as conformance runs them: each with the names
// of --linear-attn-backend that stand for it, which are proven together.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/threads.h"
#include "conformance/variant.h"
#include "linear/testing/case.h"

namespace warpweave::testing_linear {

struct LinearFamily {
  // One a name ("cpu-linear@avx2"), for reports: they have no `create`.
  std::vector<conformance::Variant> names;
  // Kernels that take calls whose tensors are in host memory; `captured`: run from a captured graph, where Caps claim
  // it.
  std::function<std::unique_ptr<LinearAttnKernelBase>(bool captured)> create;
  // Beside twice the error of the same recurrence in the stored types, relative to the largest value (suite.h).
  std::function<double(const LinearAttnCase&)> slack;
};

// Those of every device. `team` is not owned and outlives what is created.
std::vector<LinearFamily> linear_families(ThreadTeam& team);

}  // namespace warpweave::testing_linear
