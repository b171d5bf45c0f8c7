#include "linear/cuda/recurrent.cuh"

#include "linear/cuda/cuda_device.h"
#include "ops/cuda/launch.cuh"
#include "linear/cuda/launch_grids.h"

namespace warpweave::linear {

void launch_commit(const LinearParams& p, cudaStream_t stream) {
  recurrent_grid<RecurrentMode::commit>(p, gpu::num_sms(), [&]<class C>(int x, int y) {
    gpu::launch_dependent({dim3(x, y), dim3(C::kThreads), 0, stream}, recurrent<C>, p);
  });
}

}  // namespace warpweave::linear
