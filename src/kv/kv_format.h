// How K and V are stored in the pool. fp4_e2m1 is the NVFP4 layout: two values a byte (the even
// element in the low four bits) and one e4m3 scale per 16 elements along the head dim.
// docs/kv-formats.md describes layouts, scales and measured quality.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "warpweave/tensor.h"

namespace warpweave {

enum class KvFormat : uint8_t { f32, bf16, f16, fp8_e4m3, fp8_e5m2, fp4_e2m1, fp8_ds_mla, fp4_mla };
inline constexpr KvFormat kLastKvFormat = KvFormat::fp4_mla;

inline constexpr int kFp4BlockElements = 16;
inline constexpr int kDsMlaTokenBytes = 656;
inline constexpr int kFp4MlaTokenBytes = 416;

// Formats of whole tokens of latent attention (kv/latent_token.h). Their elements are bytes.
constexpr bool kv_format_is_packed(KvFormat format) {
  return format == KvFormat::fp8_ds_mla || format == KvFormat::fp4_mla;
}
// Elements that a head of `head_dim` values takes in the pool.
constexpr int kv_stored_dim(KvFormat format, int head_dim) {
  if (head_dim == 0 || !kv_format_is_packed(format)) return head_dim;
  return format == KvFormat::fp8_ds_mla ? kDsMlaTokenBytes : kFp4MlaTokenBytes;
}

std::string_view kv_format_name(KvFormat format);
// The names of --kv-cache-dtype, "auto" excepted: those of kv_format_name, and the long ones
// ("bfloat16", "float16", "float32").
std::optional<KvFormat> parse_kv_format(std::string_view name);
// The format that stores a plain model dtype as it is; nullopt for block formats and integers.
std::optional<KvFormat> kv_format_of(DType dtype);

// Bits of one element of the pool, without block scales.
constexpr int kv_format_bits(KvFormat format) {
  switch (format) {
    case KvFormat::f32: return 32;
    case KvFormat::bf16:
    case KvFormat::f16: return 16;
    case KvFormat::fp8_e4m3:
    case KvFormat::fp8_e5m2:
    case KvFormat::fp8_ds_mla:
    case KvFormat::fp4_mla: return 8;
    case KvFormat::fp4_e2m1: return 4;
  }
  return 0;
}

// Formats whose stored values are multiplied by scales of heads.
constexpr bool kv_format_is_scaled(KvFormat format) {
  return kv_format_bits(format) <= 8 && !kv_format_is_packed(format);
}

// The largest magnitude that the format holds under a head scale of 1.
constexpr float kv_format_max(KvFormat format) {
  switch (format) {
    case KvFormat::f32:
    case KvFormat::bf16: return 3.3895313e38f;
    case KvFormat::f16: return 65504.0f;
    case KvFormat::fp8_e4m3: return 448.0f;
    case KvFormat::fp8_e5m2: return 57344.0f;
    case KvFormat::fp4_e2m1:
    case KvFormat::fp4_mla: return 6.0f * 448.0f;
    case KvFormat::fp8_ds_mla: return 448.0f * 128.0f;
  }
  return 0;
}

}  // namespace warpweave
