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
    .kv_formats = {KvFormat::f32, KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3,
                   KvFormat::fp8_e5m2, KvFormat::fp4_e2m1},
    .head_dims = IntChoice::any_up_to(512),
    .page_sizes = IntChoice::of({1}),
    .expands_pages = true,
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
    .kernels = {.prefill = "row by row", .decode = "row by row"},
};

// Latent rows (DeepSeek) through the same code: one KV head, V the first part of K.
inline constexpr Caps kMlaCaps = [] {
  Caps caps = kCaps;
  caps.kinds = {AttentionKind::mla};
  caps.kv_formats = {KvFormat::f32, KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2};
  caps.head_dims = IntChoice::any_up_to(576);
  caps.sliding_window = caps.sinks = caps.softcap = caps.non_causal = caps.right_window = false;
  return caps;
}();

inline constexpr Caps kCudaCaps = {
    .name = "torch_native",
    .summary = "one block per query row and head on a CUDA GPU: slow, simple, trusted",
    .kinds = {AttentionKind::mha},
    .phases = {AttentionPhase::prefill, AttentionPhase::decode},
    .archs = {DeviceArch::sm_80, DeviceArch::sm_86, DeviceArch::sm_89, DeviceArch::sm_90},
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
    .deterministic = true,
    .kernels = {.prefill = "row by row (CUDA)", .decode = "row by row (CUDA)"},
};

inline constexpr Caps kCudaMlaCaps = [] {
  Caps caps = kCudaCaps;
  caps.kinds = {AttentionKind::mla};
  caps.kv_formats = {KvFormat::f32, KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2};
  caps.head_dims = IntChoice::any_up_to(576);
  caps.sliding_window = caps.sinks = caps.softcap = caps.non_causal = false;
  return caps;
}();

}  // namespace warpweave::torch_native
