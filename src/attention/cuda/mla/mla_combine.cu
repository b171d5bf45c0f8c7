#include "attention/cuda/mla/mla_combine.cuh"

#include "attention/cuda/mla/mla_variants.h"
#include "attention/cuda/split_combine_launch.cuh"

namespace warpweave::cuda {

cudaError_t launch_mla_combine(MlaElement element, const MlaParams& p, const SplitWork& work, cudaStream_t stream) {
  return element == MlaElement::bf16 ? launch_combine<MlaRows<ptx::Bf16>>(p, work, work.num_workers, stream)
                                     : launch_combine<MlaRows<ptx::F16>>(p, work, work.num_workers, stream);
}

}  // namespace warpweave::cuda
