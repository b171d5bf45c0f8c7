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
  caps.kv_formats.bits |= kPackedKvFormats.bits;
  caps.head_dims = IntChoice::any_up_to();
  caps.kernels = {.prefill = "fp64", .decode = "fp64"};
  return caps;
}();

}  // namespace warpweave::reference
