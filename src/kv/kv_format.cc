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
  }
  return "unknown";
}

std::optional<KvFormat> parse_kv_format(std::string_view name) {
  for (KvFormat format : {KvFormat::f32, KvFormat::bf16, KvFormat::f16, KvFormat::fp8_e4m3,
                          KvFormat::fp8_e5m2, KvFormat::fp4_e2m1}) {
    if (name == kv_format_name(format)) return format;
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
