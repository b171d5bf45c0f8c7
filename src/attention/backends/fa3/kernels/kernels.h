// The launches of fa3's own kernels; what they promise stands at KernelFamily. Shapes that they do not
// run (layout of tile_rows 0) go to the mma.sync kernels.
#pragma once

#include "attention/backends/flashinfer/kernels/kernels.h"
#include "attention/cuda/kernel_family.h"

namespace warpweave::cuda {

ExtendLayout sm90_extend_layout(const KernelShape& shape, const AttentionParams& p, int max_q_len);
cudaError_t sm90_extend(const KernelShape& shape, const AttentionParams& p, const ExtendLaunch& launch,
                        cudaStream_t stream);

// Drafts to verify, and a few new tokens on a prefix (KernelFamily).
ShortLayout sm90_short_layout(const KernelShape& shape, const AttentionParams& p, int num_sms);
cudaError_t sm90_short_extend(const KernelShape& shape, const AttentionParams& p, const SplitWork& work,
                              cudaStream_t stream);
size_t sm90_short_workspace_bytes(int num_sms);

// Decode by the mma.sync kernels, all else by these; sm_90.
inline constexpr KernelFamily kSm90Kernels = {sm80_decode_layout, sm80_decode, sm90_extend_layout,
                                              sm90_extend, sm90_short_layout, sm90_short_extend,
                                              sm90_short_workspace_bytes};

// Prompts of latent attention in the form of Q and K of 192, V of 128 dims: every head has its own K and V, pages of a
// multiple of 128 tokens; no tree mask, window, softcap or sinks. Tiles for launch_extend_plan: kLatentTileRows rows of
// a q head. K and V have the same strides.
inline constexpr int kLatentTileRows = 128;
cudaError_t sm90_latent_extend(ElementType element, const AttentionParams& p, const ExtendLaunch& launch,
                               cudaStream_t stream);

}  // namespace warpweave::cuda
