// The slow truth: what every other backend is compared against. It is never selected to serve.
#pragma once

#include "attention/caps.h"

namespace warpweave::reference {

inline constexpr Caps kCaps = {
    .name = "reference",
    .summary = "fp64 scalar truth for the conformance suite",
    .selectable = false,
    .kinds = {AttentionKind::mha, AttentionKind::mla},
    .phases = {AttentionPhase::prefill, AttentionPhase::decode},
    .archs = {DeviceArch::cpu_x86_64, DeviceArch::cpu_other},
    .dtypes = {ModelDType::f32, ModelDType::bf16, ModelDType::f16},
    .kv_formats = {KvFormat::f32, KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3,
                   KvFormat::fp8_e5m2, KvFormat::fp4_e2m1},
    .head_dims = IntChoice::any_up_to(),
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
    .kernels = {.prefill = "fp64", .decode = "fp64"},
};

}  // namespace warpweave::reference
