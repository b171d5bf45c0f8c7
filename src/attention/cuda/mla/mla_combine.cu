#include "attention/cuda/mla/mla_combine.cuh"

#include "attention/cuda/mla/mla_variants.h"
#include "attention/cuda/split_combine_launch.h"

namespace warpweave::cuda {

cudaError_t launch_mla_combine(MlaElement element, const MlaParams& p, const SplitWork& work, cudaStream_t stream) {
  return launch_combine(element == MlaElement::bf16 ? mla_combine<ptx::Bf16> : mla_combine<ptx::F16>, work.num_workers, stream,
                        p, work);
}

}  // namespace warpweave::cuda
