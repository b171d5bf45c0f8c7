// The CUDA kernel of the gated short convolution, run on the host (host_cta.h), against a reference in f64.
#include <gtest/gtest.h>

#include "device/cuda/testing/host_cta.h"

#include "linear/cuda/testing/host_math.h"

#include "linear/cuda/short_conv.cuh"
#include "linear/cuda/short_conv_params.h"
#include "linear/testing/short_conv_problem.h"

namespace warpweave::linear {
namespace {

TEST(ShortConvKernel, GivesTheReference) {
  for (const auto order : {host_cta::Order::ascending, host_cta::Order::random}) {
    for (const testing_linear::ShortConvCase& c : testing_linear::short_conv_cases()) {
      testing_linear::ShortConvProblem problem(c);
      const ShortConvCall call = problem.call();
      const RowsParams p = short_conv_params(call);
      const RowGates gates{call.conv.x, call.channels};
      for (int y = 0; y < p.blocks; ++y) {
        for (int x = 0; x < (p.channels + kRowsThreads - 1) / kRowsThreads; ++x) {
          host_cta::run(kRowsThreads, order, [&] { short_conv_rows(p, gates); },
                        {static_cast<unsigned>(x), static_cast<unsigned>(y)});
        }
      }
      EXPECT_LE(problem.error(), 2e-6) << c.name;
    }
  }
}

}  // namespace
}  // namespace warpweave::linear
