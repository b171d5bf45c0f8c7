#include "linear/cuda/verify_few_kda.cuh"

#include "device/cuda/shared_memory_limit.h"
#include "linear/cuda/cuda_device.h"
#include "linear/cuda/launch_grids.h"
#include "ops/cuda/launch.cuh"

namespace warpweave::linear {
namespace {

extern __shared__ __align__(16) char verify_memory[];

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks) verify_few_kernel(const __grid_constant__ LinearParams p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  verify_few<C>(p, verify_memory);
}

template <class C>
void launch(const LinearParams& p, dim3 grid, cudaStream_t stream) {
  static SharedMemoryLimit limit;
  limit.raise(verify_few_kernel<C>, verify_few_shared_bytes<C>());  // where this fails, so does the launch
  // Left to itself the driver keeps so much of a multiprocessor for the L1 cache that one block fits where two are meant to.
  if constexpr (C::kKda) {
    static const cudaError_t asked = cudaFuncSetAttribute(reinterpret_cast<const void*>(verify_few_kernel<C>),
                                                          cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    static_cast<void>(asked);  // the kernel runs without it, too
  }
  gpu::launch_dependent({grid, dim3(C::kThreads), verify_few_shared_bytes<C>(), stream}, verify_few_kernel<C>, p);
}

}  // namespace

void launch_verify_few(const LinearParams& p, bool f16, cudaStream_t stream) {
  const auto run = [&]<class C>(int x, int y) { launch<C>(p, dim3(x, y), stream); };
  f16 ? verify_few_grid<ptx::F16>(p, run) : verify_few_grid<ptx::Bf16>(p, run);
}

}  // namespace warpweave::linear
