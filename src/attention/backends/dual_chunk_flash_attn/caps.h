// What dual_chunk_flash_attn can do, on the CPU and on NVIDIA GPUs.
#pragma once

#include "attention/caps.h"

namespace warpweave::dual_chunk_flash_attn {

inline constexpr Caps kCaps = {
    .name = "dual_chunk_flash_attn",
    .summary = "dual chunk attention of Qwen2.5-1M in one pass",
    .kinds = {AttentionKind::mha},
    .phases = {AttentionPhase::prefill, AttentionPhase::decode},
    .archs = {DeviceArch::cpu_x86_64, DeviceArch::cpu_other},
    .dtypes = {ModelDType::f32, ModelDType::bf16, ModelDType::f16},
    .kv_formats = {KvFormat::f32, KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3,
                   KvFormat::fp8_e5m2, KvFormat::fp4_e2m1},
    .head_dims = IntChoice::any_up_to(512),
    .page_sizes = IntChoice::any_up_to(),
    .chunked_prefix = true,
    .deterministic = true,
    .workspace_bytes = 4 << 20,
    .kernels = {.prefill = "cpu_tiles", .decode = "cpu_tiles"},
};

inline constexpr Caps kCudaCaps = {
    .name = "dual_chunk_flash_attn",
    .summary = "dual chunk attention of Qwen2.5-1M in one pass",
    .kinds = {AttentionKind::mha},
    .phases = {AttentionPhase::prefill, AttentionPhase::decode},
    .archs = {DeviceArch::sm_90},
    .dtypes = {ModelDType::f32, ModelDType::bf16, ModelDType::f16},
    .kv_formats = {KvFormat::f32, KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3,
                   KvFormat::fp8_e5m2, KvFormat::fp4_e2m1},
    .head_dims = IntChoice::any_up_to(128),
    .page_sizes = IntChoice::any_up_to(),
    .chunked_prefix = true,
    .graph_capture = true,
    .kernels = {.prefill = "tile", .decode = "tile"},
};

}  // namespace warpweave::dual_chunk_flash_attn
