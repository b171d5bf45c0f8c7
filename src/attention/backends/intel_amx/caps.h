// What intel_amx can do. The name is the flag value that users know; the backend runs on every CPU
// and picks its tier at run time: scalar, AVX2, AVX-512, AVX512-BF16, AMX.
#pragma once

#include "attention/caps.h"

namespace warpweave::intel_amx {

inline constexpr Caps kCaps = {
    .name = "intel_amx",
    .summary = "CPU: blocked online softmax; AMX, AVX512-BF16, AVX-512, AVX2 or scalar at run time",
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
    .kernels = {.prefill = "intel_amx", .decode = "intel_amx"},
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

}  // namespace warpweave::intel_amx
