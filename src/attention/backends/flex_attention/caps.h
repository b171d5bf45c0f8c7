// What flex_attention can do, on the CPU and on NVIDIA GPUs.
#pragma once

#include "attention/base_caps.h"

namespace warpweave::flex_attention {

inline constexpr Caps kCaps = [] {
  Caps caps = kHostCaps;
  caps.name = "flex_attention";
  caps.summary = "user score and mask modifiers compiled to tile operations, block-sparse";
  caps.workspace_bytes = 4 << 20;
  caps.kernels = {.prefill = "cpu_tiles", .decode = "cpu_tiles"};
  return caps;
}();
inline constexpr Caps kMlaCaps = packed_latent_caps(kCaps);

inline constexpr Caps kCudaCaps = [] {
  Caps caps = kTileCudaCaps;
  caps.name = "flex_attention";
  caps.summary = "user score and mask modifiers compiled into the tile kernels, block-sparse";
  return caps;
}();
inline constexpr Caps kCudaMlaCaps = packed_latent_gpu_caps(kCudaCaps);

}  // namespace warpweave::flex_attention
