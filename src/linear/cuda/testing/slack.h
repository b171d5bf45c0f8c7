// What the kernels of linear attention on GPUs are held to beside twice the error of the same precision (testing/suite.h).
#pragma once

#include "linear/testing/case.h"

namespace warpweave::linear {

// Relative to the largest value. Chunks multiply 16-bit elements; a norm makes large outputs of small ones. Steps, and what a
// call wants exact, are f32.
inline double gpu_slack(const testing_linear::LinearAttnCase& c) {
  if (c.phase == LinearAttnPhase::decode || c.exact) return 5e-5;
  return c.norm ? 0.05 : 0.02;
}

}  // namespace warpweave::linear
