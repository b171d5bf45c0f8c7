// What flashinfer can do on a GPU: the mma.sync kernels of kernels/, any page size.
#pragma once

#include "attention/caps.h"
#include "attention/cuda/mla/mla_caps.h"

namespace warpweave::flashinfer {

inline constexpr Caps kCaps = {
    .name = "flashinfer",
    .summary = "mma.sync kernels over paged K/V: split-KV decode planned on the device, tiled prefill",
    .kinds = {AttentionKind::mha},
    .phases = {AttentionPhase::prefill, AttentionPhase::decode},
    .archs = {DeviceArch::sm_90},
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
    .graph_capture = true,
    .deterministic = true,
    .deterministic_group = 16,
    .deterministic_kv = {KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2},
    .workspace_bytes = 12 << 20,
    .kernels = {.prefill = "sm80_extend", .decode = "sm80_decode"},
};

// Latent attention (DeepSeek): the kernels of attention/cuda/mla.
inline constexpr cuda::MlaName kMla = {
    .name = "flashinfer",
    .summary = "MLA by mma.sync over ragged page tables",
    .choice = cuda::MlaChoice::mma,
    .preferred_page_size = 1,
};
inline constexpr Caps kMlaCaps = cuda::mla_caps(kMla);

}  // namespace warpweave::flashinfer
