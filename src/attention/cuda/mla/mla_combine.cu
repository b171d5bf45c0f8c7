#include "attention/cuda/mla/mla_combine.cuh"

#include "attention/cuda/mla/mla_variants.h"

namespace warpweave::cuda {

cudaError_t launch_mla_combine(MlaElement element, const MlaParams& p, const MlaWork& work, cudaStream_t stream) {
  const int rows = p.max_q_len * p.num_heads < work.tile_rows ? p.max_q_len * p.num_heads : work.tile_rows;
  cudaLaunchConfig_t config{};
  // Rows first: columns are split over CTAs where rows are few.
  const int row_blocks = (rows + 15) / 16;
  config.gridDim = dim3(work.num_workers, row_blocks, row_blocks == 1 ? 8 : row_blocks == 2 ? 4 : 2);
  config.blockDim = 32 * kMlaCombineWarps;
  config.stream = stream;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, element == MlaElement::bf16 ? mla_combine<ptx::Bf16> : mla_combine<ptx::F16>, p, work);
}

}  // namespace warpweave::cuda
