// The launches of fa3's own kernels; what they promise stands at KernelFamily. Shapes that they do not
// run (layout of tile_rows 0) go to the mma.sync kernels.
#pragma once

#include "attention/cuda/paged_backend.h"

namespace warpweave::cuda {

ExtendLayout sm90_extend_layout(const KernelShape& shape, const AttentionParams& p, int max_q_len);
cudaError_t sm90_extend(const KernelShape& shape, const AttentionParams& p, const ExtendLaunch& launch,
                        cudaStream_t stream);

}  // namespace warpweave::cuda
