#include "linear/cuda/decode.cuh"

#include "linear/cuda/cuda_device.h"
#include "linear/cuda/launch_grids.h"
#include "ops/cuda/launch.cuh"

namespace warpweave::linear {

void launch_decode_step(const LinearParams& given, cudaStream_t stream) {
  LinearParams p = given;
  p.decode_rows = decode_rows(p, gpu::num_sms());
  decode_grid(p, [&]<class C>(int x, int y) {
    gpu::launch_dependent({dim3(x, y), dim3(2 * p.decode_rows), 0, stream}, decode_step<C>, p);
  });
}

}  // namespace warpweave::linear
