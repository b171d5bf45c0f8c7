#include "linear/cuda/decode.cuh"

#include "device/cuda/shared_memory_limit.h"
#include "linear/cuda/cuda_device.h"
#include "linear/cuda/launch_grids.h"
#include "ops/cuda/launch.cuh"

namespace warpweave::linear {
namespace {

extern __shared__ __align__(16) char decode_memory[];

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks) decode_kernel(const __grid_constant__ LinearParams p) {
  decode_units<C>(p, decode_memory);
}

}  // namespace

void launch_decode(const LinearParams& given, cudaStream_t stream) {
  if (slices_take(given)) return launch_decode_slices(given, stream);
  decode_grid(given, gpu::num_sms(), [&]<class C>() {
    static SharedMemoryLimit limit;
    limit.raise(decode_kernel<C>, decode_shared_bytes<C>(C::kStages));  // where this fails, so does the launch
    const DecodeLaunch launch = decode_launch<C>(given, gpu::num_sms());
    LinearParams p = given;
    p.decode_blocks = launch.blocks, p.decode_units = launch.units, p.decode_by_turns = launch.by_turns;
    gpu::launch_dependent({dim3(launch.blocks), dim3(C::kThreads), static_cast<size_t>(launch.shared_bytes), stream}, decode_kernel<C>, p);
  });
}

}  // namespace warpweave::linear
