// Plain attention per sequence over gathered K and V: slow, simple, trusted.
#pragma once

#include "attention/base_caps.h"

namespace warpweave::torch_native {

inline constexpr Caps kCaps = [] {
  Caps caps = kHostCaps;
  caps.name = "torch_native";
  caps.summary = "per-sequence attention over gathered K and V: slow, simple, trusted";
  caps.page_sizes = IntChoice::of({1});
  caps.expands_pages = true;
  caps.kernels = {.prefill = "row by row", .decode = "row by row"};
  return caps;
}();
inline constexpr Caps kMlaCaps = packed_latent_caps(kCaps);

inline constexpr Caps kCudaCaps = [] {
  Caps caps = kHostCaps;
  caps.name = "torch_native";
  caps.summary = "one block per query row and head on a CUDA GPU: slow, simple, trusted";
  caps.archs = {DeviceArch::sm_80, DeviceArch::sm_86, DeviceArch::sm_89, DeviceArch::sm_90};
  caps.right_window = false;
  caps.graph_capture = true;
  caps.kernels = {.prefill = "row by row (CUDA)", .decode = "row by row (CUDA)"};
  return caps;
}();
inline constexpr Caps kCudaMlaCaps = packed_latent_gpu_caps(kCudaCaps);

}  // namespace warpweave::torch_native
