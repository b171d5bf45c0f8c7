// Plain attention per sequence over gathered K and V: slow, simple, trusted.
#pragma once

#include "attention/caps.h"

namespace warpweave::torch_native {

inline constexpr Caps kCaps = {
    .name = "torch_native",
    .summary = "per-sequence attention over gathered K and V: slow, simple, trusted",
    .kinds = {AttentionKind::mha},
    .phases = {AttentionPhase::prefill, AttentionPhase::decode},
    .archs = {DeviceArch::cpu_x86_64, DeviceArch::cpu_other},
    .dtypes = {ModelDType::f32, ModelDType::bf16, ModelDType::f16},
    .kv_formats = {KvFormat::f32, KvFormat::bf16, KvFormat::f16},
    .head_dims = IntChoice::any_up_to(512),
    .page_sizes = IntChoice::of({1}),
    .expands_pages = true,
    .sliding_window = true,
    .sinks = true,
    .softcap = true,
    .chunked_prefix = true,
    .deterministic = true,
};

}  // namespace warpweave::torch_native
