#include "linear/cuda/decode.cuh"

#include "linear/cuda/cuda_device.h"
#include "linear/cuda/launch_grids.h"
#include "ops/cuda/launch.cuh"

namespace warpweave::linear {

void launch_decode_normed(const LinearParams& p, cudaStream_t stream) {
  decode_normed_grid(p, [&]<class C>(int x, int y) {
    gpu::launch_dependent({dim3(x, y), dim3(decode_threads(p.v_dim)), 0, stream}, decode_normed<C>, p);
  });
}

}  // namespace warpweave::linear
