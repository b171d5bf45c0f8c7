// What fa3 can do on a GPU: TMA and wgmma prefill on Hopper, split-KV decode, any page size. Draft trees,
// fp8_e5m2 and fp4 K/V, and what kFp8Mma leaves out run in the mma.sync kernels of `flashinfer`.
#pragma once

#include "attention/base_caps.h"
#include "attention/cuda/mla/mla_caps.h"

namespace warpweave::fa3 {

// wgmma on e4m3. Sums of 14 bits: what others found of Hopper's fp8 MMA, and as what an H200 loses in long
// sums says. From 64 new tokens on they are as fast as widened K and V or faster; a tile has 128 rows or more.
inline constexpr Fp8Mma kFp8Mma = {
    .kv_formats = {KvFormat::fp8_e4m3},
    .head_dims = IntChoice::of({64, 128}),
    .page_multiple = 8,
    .min_q_len = 64,
    .sum_bits = 14,
    .sum_tokens = 128,
};

inline constexpr Caps kCaps = [] {
  Caps caps = fixed_split_caps(kPagedCudaCaps);
  caps.name = "fa3";
  caps.summary = "Hopper: TMA and wgmma prefill, warp-specialised; split-KV decode planned on the device";
  caps.min_cuda_version = 12030;
  caps.fp8_mma = kFp8Mma;
  caps.workspace_bytes += 768 << 20;  // copies of K and V on pages of a few tokens, when needed
  caps.kernels.prefill = "sm90_extend";
  return caps;
}();

// Latent attention (DeepSeek): the kernels of attention/cuda/mla.
inline constexpr cuda::MlaName kMla = {
    .name = "fa3",
    .summary = "MLA on Hopper: WGMMA over TMA copies, mma.sync for few rows",
    .choice = cuda::MlaChoice::faster,
    .preferred_page_size = 64,
    .min_cuda_version = 12030,
};
inline constexpr Caps kMlaCaps = cuda::mla_caps(kMla);

}  // namespace warpweave::fa3
