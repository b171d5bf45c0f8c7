#include "kv/kv_format.h"

namespace warpweave {

std::string_view kv_format_name(KvFormat format) {
  switch (format) {
    case KvFormat::f32: return "f32";
    case KvFormat::bf16: return "bf16";
    case KvFormat::f16: return "f16";
    case KvFormat::fp8_e4m3: return "fp8_e4m3";
    case KvFormat::fp8_e5m2: return "fp8_e5m2";
    case KvFormat::fp4_e2m1: return "fp4_e2m1";
    case KvFormat::fp8_ds_mla: return "fp8_ds_mla";
    case KvFormat::fp4_mla: return "fp4_mla";
  }
  return "unknown";
}

std::optional<KvFormat> parse_kv_format(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(kLastKvFormat); ++i) {
    if (name == kv_format_name(static_cast<KvFormat>(i))) return static_cast<KvFormat>(i);
  }
  const std::optional<DType> dtype = parse_dtype(name);
  return dtype ? kv_format_of(*dtype) : std::nullopt;
}

std::optional<KvFormat> kv_format_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return KvFormat::f32;
    case DType::bf16: return KvFormat::bf16;
    case DType::f16: return KvFormat::f16;
    case DType::fp8_e4m3: return KvFormat::fp8_e4m3;
    case DType::fp8_e5m2: return KvFormat::fp8_e5m2;
    default: return std::nullopt;
  }
}

}  // namespace warpweave
