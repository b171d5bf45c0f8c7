// What fa4 can do here: the Hopper kernels on pages of 128 tokens, the KV block, so that one copy
// fills a stage. Lazy rescale is in them; polynomial exponentials are not: they were slower on sm_90.
#pragma once

#include "attention/backends/fa3/caps.h"
#include "attention/caps.h"
#include "attention/cuda/mla/mla_caps.h"

namespace warpweave::fa4 {

inline constexpr Caps kCaps = {
    .name = "fa4",
    .summary = "Hopper kernels with lazy rescale on pages of 128 tokens; split-KV decode",
    .kinds = {AttentionKind::mha},
    .phases = {AttentionPhase::prefill, AttentionPhase::decode},
    .archs = {DeviceArch::sm_90},
    .min_cuda_version = 12030,
    .dtypes = {ModelDType::bf16, ModelDType::f16},
    .kv_formats = {KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::fp4_e2m1},
    .head_dims = IntChoice::of({64, 128, 256}),
    .page_sizes = IntChoice::of({128}),
    .spec = SpecSupport::tree,
    .spec_paged = SpecSupport::tree,
    .sliding_window = true,
    .sinks = true,
    .softcap = true,
    .custom_mask = true,
    .chunked_prefix = true,
    .non_causal = true,
    .fp8_products = fa3::kFp8Products,
    .graph_capture = true,
    .deterministic = true,
    .deterministic_group = 16,
    .deterministic_kv = {KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2},
    .workspace_bytes = 12 << 20,
    .kernels = {.prefill = "sm90_extend", .decode = "sm80_decode"},
};

// Latent attention (DeepSeek): the kernels of attention/cuda/mla.
inline constexpr cuda::MlaName kMla = {
    .name = "fa4",
    .summary = "MLA on Hopper: WGMMA over TMA copies",
    .choice = cuda::MlaChoice::wgmma,
    .min_cuda_version = 12030,
};
inline constexpr Caps kMlaCaps = cuda::mla_caps(kMla);

}  // namespace warpweave::fa4
