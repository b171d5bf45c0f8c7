#include "linear/cuda/chunk_kernels.cuh"

namespace warpweave::linear {

void launch_wgmma_scan_f16(const LinearParams& p, int groups, cudaStream_t stream) {
  const ScanMaps maps = make_scan_maps(p);
  wgmma_scan_grid<ptx::F16>(p, groups, [&]<class C>(int x, int y) { launch_chunks<C>(wgmma_scan_kernel<C>, dim3(x, y), stream, p, maps); });
}

}  // namespace warpweave::linear
