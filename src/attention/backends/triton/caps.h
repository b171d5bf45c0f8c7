// The portable tile kernels: through OpenCL on a CPU, through NVRTC on NVIDIA GPUs.
#pragma once

#include "attention/base_caps.h"

namespace warpweave::triton {

inline constexpr Caps kOpenClCaps = [] {
  Caps caps = kHostCaps;
  caps.name = "triton";
  caps.summary = "the portable tile kernels, compiled at run time; on a CPU through OpenCL";
  caps.kernels = {.prefill = "tile", .decode = "tile"};
  return caps;
}();
inline constexpr Caps kOpenClMlaCaps = packed_latent_caps(kOpenClCaps);

inline constexpr Caps kCudaCaps = [] {
  Caps caps = kTileCudaCaps;
  caps.name = "triton";
  caps.summary = "the portable tile kernels, compiled at run time; on NVIDIA GPUs with mma.sync";
  return caps;
}();
inline constexpr Caps kCudaMlaCaps = packed_latent_gpu_caps(kCudaCaps);

}  // namespace warpweave::triton
