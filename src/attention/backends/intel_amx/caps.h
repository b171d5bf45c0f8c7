// What intel_amx can do. The name is the flag value that users know; the backend runs on every CPU
// and picks its tier at run time: scalar, AVX2, AVX-512, AVX512-BF16, AMX.
#pragma once

#include "attention/base_caps.h"

namespace warpweave::intel_amx {

inline constexpr Caps kCaps = [] {
  Caps caps = kHostCaps;
  caps.name = "intel_amx";
  caps.summary = "CPU: blocked online softmax; AMX, AVX512-BF16, AVX-512, AVX2 or scalar at run time";
  caps.workspace_bytes = 4 << 20;
  caps.kernels = {.prefill = "intel_amx", .decode = "intel_amx"};
  return caps;
}();
inline constexpr Caps kMlaCaps = packed_latent_caps(kCaps);

}  // namespace warpweave::intel_amx
