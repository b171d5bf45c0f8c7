#include "linear/cuda/chunk_kernels.cuh"

namespace warpweave::linear {

void launch_prepare_bf16(const LinearParams& p, cudaStream_t stream) {
  prepare_grid<ptx::Bf16>(p, [&]<class C>(int x, int y) { launch_chunks<C>(prepare_kernel<C>, dim3(x, y), stream, p); });
}

}  // namespace warpweave::linear
