#include "linear/cuda/recurrent_verify.cuh"

#include "linear/cuda/recurrent_verify.h"
#include "ops/cuda/launch.cuh"

namespace warpweave::linear {

void launch_verify_exactly(const LinearParams& p, cudaStream_t stream) {
  verify_grid(p, [&]<class C>(int x, int y) {
    gpu::launch_dependent({dim3(x, y), dim3(C::kThreads), 0, stream}, recurrent_verify<C>, p);
  });
}

}  // namespace warpweave::linear
