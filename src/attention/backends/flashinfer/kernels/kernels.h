// The launches of this backend's kernels, chosen by element type, KV storage and shape; what the
// functions promise stands at KernelFamily.
#pragma once

#include "attention/cuda/kernel_family.h"

namespace warpweave::cuda {

DecodeLayout sm80_decode_layout(const KernelShape& shape, int rows, bool multi_row);
cudaError_t sm80_decode(const KernelShape& shape, const AttentionParams& p, const DecodeLaunch& launch,
                        cudaStream_t stream);

ExtendLayout sm80_extend_layout(const KernelShape& shape, const AttentionParams& p, int max_q_len);
cudaError_t sm80_extend(const KernelShape& shape, const AttentionParams& p, const ExtendLaunch& launch,
                        cudaStream_t stream);

// Of these alone; sm_80 and later.
inline constexpr KernelFamily kSm80Kernels = {sm80_decode_layout, sm80_decode, sm80_extend_layout, sm80_extend};

}  // namespace warpweave::cuda
