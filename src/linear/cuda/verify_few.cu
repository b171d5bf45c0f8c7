#include "linear/cuda/verify_few.cuh"

#include "linear/cuda/cuda_device.h"
#include "linear/cuda/launch_grids.h"
#include "ops/cuda/launch.cuh"

namespace warpweave::linear {
namespace {

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks) verify_few_kernel(const __grid_constant__ LinearParams p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  verify_few<C>(p);
}

}  // namespace

void launch_verify_few(const LinearParams& p, bool f16, cudaStream_t stream) {
  const auto run = [&]<class C>(int x, int y) { gpu::launch_dependent({dim3(x, y), dim3(C::kThreads), 0, stream}, verify_few_kernel<C>, p); };
  f16 ? verify_few_grid<ptx::F16>(p, run) : verify_few_grid<ptx::Bf16>(p, run);
}

}  // namespace warpweave::linear
