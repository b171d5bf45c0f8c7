#include "linear/cuda/short_conv_device.h"

#include "linear/cuda/short_conv.cuh"
#include "linear/cuda/short_conv_params.h"
#include "ops/cuda/launch.cuh"

namespace warpweave::linear {
namespace {

__global__ void __launch_bounds__(kRowsThreads) short_conv_kernel(const __grid_constant__ RowsParams p,
                                                                  const __grid_constant__ RowGates gates) {
  ptx::grid_dependency_wait();
  ptx::launch_dependents();
  short_conv_rows(p, gates);
}

}  // namespace

void launch_short_conv(const ShortConvCall& call) {
  if (call.batch->num_requests == 0) return;
  const RowsParams p = short_conv_params(call);
  const dim3 grid((p.channels + kRowsThreads - 1) / kRowsThreads, p.blocks);
  gpu::launch_dependent({grid, dim3(kRowsThreads), 0, static_cast<cudaStream_t>(call.stream)}, short_conv_kernel, p,
                        RowGates{call.conv.x, call.channels});
}

}  // namespace warpweave::linear
