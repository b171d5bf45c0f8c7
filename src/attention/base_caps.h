// Caps that several backends begin with. A backend's caps.h names one of them and says what differs.
#pragma once

#include "attention/caps.h"

namespace warpweave {

inline constexpr EnumSet<AttentionPhase> kBothPhases = {AttentionPhase::prefill, AttentionPhase::decode};
inline constexpr EnumSet<ModelDType> kAllDTypes = {ModelDType::f32, ModelDType::bf16, ModelDType::f16};
inline constexpr EnumSet<ModelDType> k16Bit = {ModelDType::bf16, ModelDType::f16};
inline constexpr EnumSet<KvFormat> kPackedKvFormats = {KvFormat::fp8_ds_mla, KvFormat::fp4_mla};
inline constexpr EnumSet<KvFormat> kUnpackedKvFormats = {KvFormat::f32, KvFormat::bf16, KvFormat::f16,
                                                         KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::fp4_e2m1};

// On a CPU, all that attention over K and V of heads may be asked for.
inline constexpr Caps kHostCaps = {
    .kinds = {AttentionKind::mha},
    .phases = kBothPhases,
    .archs = kCpuArchs,
    .dtypes = kAllDTypes,
    .kv_formats = kUnpackedKvFormats,
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
};

// The portable tile kernels on an NVIDIA GPU.
inline constexpr Caps kTileCudaCaps = [] {
  Caps caps = kHostCaps;
  caps.archs = {DeviceArch::sm_90};
  caps.right_window = caps.deterministic = false;
  caps.graph_capture = true;
  caps.kernels = {.prefill = "tile", .decode = "tile"};
  return caps;
}();

// The kernels of attention/cuda over paged K and V on Hopper.
inline constexpr Caps kPagedCudaCaps = [] {
  Caps caps = kHostCaps;
  caps.archs = {DeviceArch::sm_90};
  caps.dtypes = k16Bit;
  caps.kv_formats = {KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::fp4_e2m1};
  caps.own_16_bit_kv = true;
  caps.head_dims = IntChoice::of({64, 128, 256});
  caps.right_window = caps.deterministic = false;
  caps.graph_capture = true;
  caps.workspace_bytes = 12 << 20;
  caps.kernels = {.prefill = "sm80_extend", .decode = "sm80_decode"};
  return caps;
}();

// With BackendContext::deterministic those kernels split K and V at fixed places (attention/cuda/fixed_split_plan.cuh).
constexpr Caps fixed_split_caps(Caps caps) {
  caps.deterministic = true;
  caps.deterministic_group = 16;
  caps.deterministic_kv = {KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2};
  return caps;
}

// Dual chunk attention, which is computed without the other forms that ordinary attention has.
constexpr Caps dual_chunk_caps(Caps caps) {
  caps.dual_chunk = true;
  caps.spec = caps.spec_paged = SpecSupport::none;
  caps.sliding_window = caps.sinks = caps.softcap = caps.custom_mask = caps.non_causal = caps.right_window = false;
  return caps;
}

// Latent rows (DeepSeek) through the code of ordinary attention: one KV head, V the first part of K.
constexpr Caps latent_rows_caps(Caps caps) {
  caps.kinds = {AttentionKind::mla};
  caps.kv_formats = {KvFormat::f32, KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2};
  caps.head_dims = IntChoice::any_up_to(576);
  caps.sliding_window = caps.sinks = caps.softcap = caps.non_causal = caps.right_window = false;
  return caps;
}
// With their packed tokens (kv/latent_token.h).
constexpr Caps packed_latent_caps(Caps caps) {
  caps = latent_rows_caps(caps);
  caps.kv_formats.bits |= kPackedKvFormats.bits;
  return caps;
}
// On GPUs, whose kernels multiply their rotated part as it lies there.
constexpr Caps packed_latent_gpu_caps(Caps caps) {
  caps = packed_latent_caps(caps);
  caps.bf16_model_kv_formats = kPackedKvFormats;
  return caps;
}

}  // namespace warpweave
