// What trtllm_mha can do here: decode with K and V as the rows of the matrix instructions and the q
// heads as their columns, on pages of 16 to 128 tokens. Prefill is another backend's.
#pragma once

#include "attention/caps.h"

namespace warpweave::trtllm_mha {

inline constexpr Caps kCaps = {
    .name = "trtllm_mha",
    .summary = "swap-AB split-KV decode planned on the device, pages of 16 to 128 tokens",
    .kinds = {AttentionKind::mha},
    .phases = {AttentionPhase::decode},
    .archs = {DeviceArch::sm_90},
    .dtypes = {ModelDType::bf16, ModelDType::f16},
    .kv_formats = {KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::fp4_e2m1},
    .head_dims = IntChoice::of({64, 128, 256}),
    .page_sizes = IntChoice::of({16, 32, 64, 128}),
    .spec = SpecSupport::tree,
    .spec_paged = SpecSupport::tree,
    .sliding_window = true,
    .sinks = true,
    .softcap = true,
    .custom_mask = true,
    .chunked_prefix = true,
    .graph_capture = true,
    .workspace_bytes = 12 << 20,
    .kernels = {.prefill = "sm80_extend", .decode = "sm80_decode"},
};

}  // namespace warpweave::trtllm_mha
