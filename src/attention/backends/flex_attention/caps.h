// What flex_attention can do, on the CPU and on NVIDIA GPUs.
#pragma once

#include "attention/caps.h"

namespace warpweave::flex_attention {

inline constexpr Caps kCaps = {
    .name = "flex_attention",
    .summary = "user score and mask modifiers compiled to tile operations, block-sparse",
    .kinds = {AttentionKind::mha},
    .phases = {AttentionPhase::prefill, AttentionPhase::decode},
    .archs = {DeviceArch::cpu_x86_64, DeviceArch::cpu_other},
    .dtypes = {ModelDType::f32, ModelDType::bf16, ModelDType::f16},
    .kv_formats = {KvFormat::f32, KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3,
                   KvFormat::fp8_e5m2, KvFormat::fp4_e2m1},
    .head_dims = IntChoice::any_up_to(512),
    .page_sizes = IntChoice::any_up_to(),
    .spec = SpecSupport::tree,
    .spec_paged = SpecSupport::tree,
    .sliding_window = true,
    .sinks = true,
    .softcap = true,
    .custom_mask = true,
    .chunked_prefix = true,
    .non_causal = true,
    .right_window = true,
    .deterministic = true,
    .workspace_bytes = 4 << 20,
    .kernels = {.prefill = "cpu_tiles", .decode = "cpu_tiles"},
};

inline constexpr Caps kCudaCaps = {
    .name = "flex_attention",
    .summary = "user score and mask modifiers compiled into the tile kernels, block-sparse",
    .kinds = {AttentionKind::mha},
    .phases = {AttentionPhase::prefill, AttentionPhase::decode},
    .archs = {DeviceArch::sm_90},
    .dtypes = {ModelDType::f32, ModelDType::bf16, ModelDType::f16},
    .kv_formats = {KvFormat::f32, KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3,
                   KvFormat::fp8_e5m2, KvFormat::fp4_e2m1},
    .head_dims = IntChoice::any_up_to(512),
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
    .kernels = {.prefill = "tile", .decode = "tile"},
};

}  // namespace warpweave::flex_attention
