// The slow truth: what every other backend is compared against. It is never selected to serve.
#pragma once

#include "attention/base_caps.h"

namespace warpweave::reference {

inline constexpr Caps kCaps = [] {
  Caps caps = kHostCaps;
  caps.name = "reference";
  caps.summary = "fp64 scalar truth for the conformance suite";
  caps.selectable = false;
  caps.kinds = {AttentionKind::mha, AttentionKind::mla};
  caps.kv_formats = {KvFormat::f32,      KvFormat::bf16,     KvFormat::f16,        KvFormat::fp8_e4m3,
                     KvFormat::fp8_e5m2, KvFormat::fp4_e2m1, KvFormat::fp8_ds_mla, KvFormat::fp4_mla};
  caps.head_dims = IntChoice::any_up_to();
  caps.kernels = {.prefill = "fp64", .decode = "fp64"};
  return caps;
}();

}  // namespace warpweave::reference
