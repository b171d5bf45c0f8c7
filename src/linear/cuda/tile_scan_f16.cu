#include "linear/cuda/chunk_kernels.cuh"

namespace warpweave::linear {

void launch_tile_scan_f16(const LinearParams& p, cudaStream_t stream) {
  tile_scan_grid<ptx::F16>(p, [&]<class C>(int x, int y) { launch_chunks<C>(tile_scan_kernel<C>, dim3(x, y), stream, p); });
}

}  // namespace warpweave::linear
