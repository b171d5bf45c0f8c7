// How K and V are stored in the pool. fp4_e2m1 is the NVFP4 layout: two values a byte (the even
// element in the low four bits) and one e4m3 scale per 16 elements along the head dim.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "warpweave/tensor.h"

namespace warpweave {

enum class KvFormat : uint8_t { f32, bf16, f16, fp8_e4m3, fp8_e5m2, fp4_e2m1 };

inline constexpr int kFp4BlockElements = 16;

std::string_view kv_format_name(KvFormat format);
// The format that stores a plain model dtype as it is; nullopt for block formats and integers.
std::optional<KvFormat> kv_format_of(DType dtype);

// Bits of one stored element, without block scales.
constexpr int kv_format_bits(KvFormat format) {
  switch (format) {
    case KvFormat::f32: return 32;
    case KvFormat::bf16:
    case KvFormat::f16: return 16;
    case KvFormat::fp8_e4m3:
    case KvFormat::fp8_e5m2: return 8;
    case KvFormat::fp4_e2m1: return 4;
  }
  return 0;
}

}  // namespace warpweave
