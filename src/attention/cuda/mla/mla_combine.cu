#include "attention/cuda/mla/mla_combine.cuh"

#include "attention/cuda/mla/mla_variants.h"
#include "attention/cuda/split_combine_launch.cuh"

namespace warpweave::cuda {

cudaError_t launch_mla_combine(const MlaShape& shape, const MlaParams& p, const SplitWork& work, cudaStream_t stream) {
  // On Hopper two CTAs an SM: most steps have little to merge, and more take longer to start than they save.
  const CombineGrid grid = shape.family == MlaFamily::wgmma ? CombineGrid{2 * work.num_workers, 80 << 10}
                                                            : CombineGrid{4 * work.num_workers};
  return shape.element == MlaElement::bf16 ? launch_combine<MlaRows<ptx::Bf16>>(p, work, grid, stream)
                                           : launch_combine<MlaRows<ptx::F16>>(p, work, grid, stream);
}

}  // namespace warpweave::cuda
