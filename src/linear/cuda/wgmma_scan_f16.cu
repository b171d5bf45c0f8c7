#include "linear/cuda/chunk_kernels.cuh"

namespace warpweave::linear {

void launch_wgmma_scan_f16(const LinearParams& p, int groups, cudaStream_t stream) {
  wgmma_scan_grid<ptx::F16>(p, groups, [&]<class C>(int x, int y) { launch_chunks<C>(scan_kernel<C>, p, dim3(x, y), stream); });
}

}  // namespace warpweave::linear
