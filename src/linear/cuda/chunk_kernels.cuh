// Launches of the chunk kernels, instantiated by prepare_*.cu, tile_scan_*.cu and wgmma_scan_*.cu.
#pragma once

#include "device/cuda/shared_memory_limit.h"
#include "linear/cuda/cuda_device.h"
#include "linear/cuda/launch_grids.h"
#include "ops/cuda/launch.cuh"

namespace warpweave::linear {

extern __shared__ __align__(1024) char chunk_memory[];

// Of a segment but the first it runs beside the scan before it and does not wait: that scan let it start when all that it reads was
// there, and it writes nothing that the scan reads.
template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks) prepare_kernel(const __grid_constant__ LinearParams p) {
  ptx::launch_dependents();
  if (p.work.segment.index <= 0) ptx::grid_dependency_wait();
  chunk_prepare<C>(p, chunk_memory);
}

WW_DEVICE void await_prepared(const LinearParams& p) {
  if (p.work.segment.index < 0) ptx::launch_dependents();
  ptx::grid_dependency_wait();
  if (p.work.segment.index >= 0) ptx::launch_dependents();  // now all that the next segment's prepare_kernel reads is there
}
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) tile_scan_kernel(const __grid_constant__ LinearParams p) {
  await_prepared(p);
  chunk_scan<C>(p, nullptr, chunk_memory);
}
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) wgmma_scan_kernel(const __grid_constant__ LinearParams p, const __grid_constant__ ScanMaps maps) {
  await_prepared(p);
  chunk_scan<C>(p, &maps, chunk_memory);
}

template <class C, class... Parameters>
void launch_chunks(void (*kernel)(Parameters...), dim3 grid, cudaStream_t stream, const Parameters&... parameters) {
  static SharedMemoryLimit limit;
  limit.raise(kernel, C::kSmemBytes);  // where this fails, so does the launch
  gpu::launch_dependent({grid, dim3(C::kThreads), C::kSmemBytes, stream}, kernel, parameters...);
}

}  // namespace warpweave::linear
