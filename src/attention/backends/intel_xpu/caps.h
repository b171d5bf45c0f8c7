// The tile kernels as they are laid out for Intel GPUs, with the page size compiled in.
#pragma once

#include "attention/caps.h"

namespace warpweave::intel_xpu {

inline constexpr Caps kCaps = {
    .name = "intel_xpu",
    .summary = "OpenCL on Intel GPUs, and on a CPU through its OpenCL driver; pages 32, 64, 128",
    .kinds = {AttentionKind::mha},
    .phases = {AttentionPhase::prefill, AttentionPhase::decode},
    .archs = {DeviceArch::cpu_x86_64, DeviceArch::cpu_other, DeviceArch::intel_xe},
    .dtypes = {ModelDType::f32, ModelDType::bf16, ModelDType::f16},
    .kv_formats = {KvFormat::f32, KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3,
                   KvFormat::fp8_e5m2, KvFormat::fp4_e2m1},
    .head_dims = IntChoice::any_up_to(256),
    .page_sizes = IntChoice::of({32, 64, 128}),
    .spec = SpecSupport::tree,
    .spec_paged = SpecSupport::tree,
    .sliding_window = true,
    .sinks = true,
    .softcap = true,
    .custom_mask = true,
    .chunked_prefix = true,
    .non_causal = true,
    .deterministic = true,
    .kernels = {.prefill = "tile", .decode = "tile"},
};

}  // namespace warpweave::intel_xpu
