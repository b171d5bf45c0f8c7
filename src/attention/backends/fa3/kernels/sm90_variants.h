// One function per file of instantiations.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/cuda/attention_params.h"
#include "attention/cuda/split_work.h"

namespace warpweave::cuda {

struct Sm90Variant {
  int tile_rows = 0;
  cudaError_t (*launch)(const AttentionParams&, const ExtendWorklist&, int max_items, int num_sms,
                        cudaStream_t) = nullptr;
};

// Where K and V come from.
enum class Sm90Source {
  boxes,   // of the pools, by TMA
  gather,  // 16-byte pieces of the pools, by threads: pages of a few tokens
  copies,  // such pages, copied first to where TMA can take large boxes (ExtendCopies)
};

// Tiles for short requests (of 64 tokens or fewer: of two q heads), for others, and the taller ones that a head dim may
// have for long requests.
enum class Sm90Tiling { pairs, usual, tall };

Sm90Variant sm90_bf16(int head_dim, Sm90Source source, Sm90Tiling tiling);
Sm90Variant sm90_f16(int head_dim, Sm90Source source, Sm90Tiling tiling);
// Q and K of 192, V of 128 dims, as prompts of latent attention have them.
Sm90Variant sm90_latent_bf16();
Sm90Variant sm90_latent_f16();
// e4m3 WGMMA, for e4m3 K and V on pages of a multiple of 8 tokens; not for every head dim.
Sm90Variant sm90_fp8_bf16(int head_dim, bool tall);
Sm90Variant sm90_fp8_f16(int head_dim, bool tall);

// Short requests, by tiles of 64 or 128 rows; null: not for that. `boxes`: by TMA.
using Sm90ShortKernel = cudaError_t (*)(const AttentionParams&, const SplitWork&, cudaStream_t);
Sm90ShortKernel sm90_short_bf16(int head_dim, int tile_rows, bool boxes);
Sm90ShortKernel sm90_short_f16(int head_dim, int tile_rows, bool boxes);
// Tokens of a tile of K and V. With one multiplying warpgroup runs are short, and two CTAs stand on an SM.
constexpr int short_tile_tokens(int head_dim, int consumers) {
  return consumers == 2 && head_dim <= 128 ? 128 : 64;
}

}  // namespace warpweave::cuda
