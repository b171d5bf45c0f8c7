// The launches of this backend's kernels, chosen by element type, KV storage and shape; what the
// functions promise stands at KernelFamily.
#pragma once

#include "attention/cuda/paged_backend.h"

namespace warpweave::cuda {

DecodeLayout sm80_decode_layout(const KernelShape& shape, int rows, bool multi_row);
cudaError_t sm80_decode(const KernelShape& shape, const AttentionParams& p, const DecodeLaunch& launch,
                        cudaStream_t stream);

ExtendLayout sm80_extend_layout(const KernelShape& shape, const AttentionParams& p, int max_q_len);
cudaError_t sm80_extend(const KernelShape& shape, const AttentionParams& p, const ExtendLaunch& launch,
                        cudaStream_t stream);

}  // namespace warpweave::cuda
