// The kernel that merges pieces (split_combine.cuh), and its launch.
#pragma once

#include "attention/cuda/split_combine.cuh"
#include "device/cuda/kernel_launch.h"
#include "device/cuda/shared_memory_limit.h"

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

struct CombineGrid {
  int ctas;
  // Shared memory that a CTA reserves without using it, so that CTAs launched early spread over the SMs instead of
  // filling those that finish attention first.
  int shared_bytes = 0;
};

// Launched early (PDL): it waits for the attention kernel before it.
template <class Rows, class Params>
cudaError_t launch_combine(const Params& p, const SplitWork& work, const CombineGrid& grid, cudaStream_t stream) {
  static SharedMemoryLimit limit;
  if (grid.shared_bytes > 0) {
    const cudaError_t error = limit.raise(split_combine<Rows, Params>, grid.shared_bytes);
    if (error != cudaSuccess) return error;
  }
  const LaunchShape shape = {.grid = static_cast<unsigned>(grid.ctas), .block = kCombineThreads,
                             .shared_bytes = static_cast<unsigned>(grid.shared_bytes), .stream = stream};
  return launch_kernel(shape, true, split_combine<Rows, Params>, p, work);
}

}  // namespace warpweave::cuda
