// The kernel that merges pieces (split_combine.cuh), and its launch.
#pragma once

#include "attention/cuda/split_combine.cuh"
#include "device/cuda/kernel_launch.h"

namespace warpweave::cuda {

// Rows: made of `p` and `work`.
template <class Rows, class Params>
__global__ void __launch_bounds__(kCombineThreads)
    split_combine(const __grid_constant__ Params p, const __grid_constant__ SplitWork work) {
  __shared__ CombineShared shared;
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const Rows rows(p, work);
  SplitCombine<Rows>(work, rows, shared).run(blockIdx.x, gridDim.x);
}

// Early: it waits for the attention kernel before it.
template <class Rows, class Params>
cudaError_t launch_combine(const Params& p, const SplitWork& work, int num_sms, cudaStream_t stream) {
  constexpr unsigned kCtasPerSm = 4;
  const LaunchShape shape = {.grid = kCtasPerSm * num_sms, .block = kCombineThreads, .stream = stream};
  return launch_kernel(shape, true, split_combine<Rows, Params>, p, work);
}

}  // namespace warpweave::cuda
