// What fa3 can do on a GPU: TMA and wgmma prefill on Hopper, split-KV decode, any page size. Draft trees,
// fp8_e5m2 and fp4 K/V, and what kFp8Products leaves out run in the mma.sync kernels of `flashinfer`.
#pragma once

#include "attention/caps.h"
#include "attention/cuda/mla/mla_caps.h"

namespace warpweave::fa3 {

// wgmma on e4m3. Sums of 14 bits: what others found of Hopper's fp8 products, and as what an H200 loses in long
// sums says. From 64 new tokens on they are as fast as widened K and V or faster; a tile has 128 rows or more.
inline constexpr Fp8Products kFp8Products = {
    .kv_formats = {KvFormat::fp8_e4m3},
    .head_dims = IntChoice::of({64, 128}),
    .page_multiple = 8,
    .min_q_len = 64,
    .sum_bits = 14,
    .sum_tokens = 128,
};

inline constexpr Caps kCaps = {
    .name = "fa3",
    .summary = "Hopper: TMA and wgmma prefill, warp-specialised; split-KV decode planned on the device",
    .kinds = {AttentionKind::mha},
    .phases = {AttentionPhase::prefill, AttentionPhase::decode},
    .archs = {DeviceArch::sm_90},
    .min_cuda_version = 12030,
    .dtypes = {ModelDType::bf16, ModelDType::f16},
    .kv_formats = {KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::fp4_e2m1},
    .head_dims = IntChoice::of({64, 128, 256}),
    .page_sizes = IntChoice::any_up_to(),
    .spec = SpecSupport::tree,
    .spec_paged = SpecSupport::tree,
    .sliding_window = true,
    .sinks = true,
    .softcap = true,
    .custom_mask = true,
    .chunked_prefix = true,
    .non_causal = true,
    .fp8_products = kFp8Products,
    .graph_capture = true,
    .deterministic = true,
    .deterministic_group = 16,
    .deterministic_kv = {KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2},
    .workspace_bytes = (12 << 20) + (768 << 20),  // copies of K and V on pages of a few tokens, when needed
    .kernels = {.prefill = "sm90_extend", .decode = "sm80_decode"},
};

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
