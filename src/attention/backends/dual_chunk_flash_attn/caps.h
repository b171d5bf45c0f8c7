// What dual_chunk_flash_attn can do, on the CPU and on NVIDIA GPUs.
#pragma once

#include "attention/base_caps.h"

namespace warpweave::dual_chunk_flash_attn {

inline constexpr Caps kCaps = [] {
  Caps caps = dual_chunk_caps(kHostCaps);
  caps.name = "dual_chunk_flash_attn";
  caps.summary = "dual chunk attention of Qwen2.5-1M in one pass";
  caps.workspace_bytes = 4 << 20;
  caps.kernels = {.prefill = "cpu_tiles", .decode = "cpu_tiles"};
  return caps;
}();

inline constexpr Caps kCudaCaps = [] {
  Caps caps = dual_chunk_caps(kTileCudaCaps);
  caps.name = kCaps.name;
  caps.summary = kCaps.summary;
  caps.head_dims = IntChoice::any_up_to(128);
  return caps;
}();

}  // namespace warpweave::dual_chunk_flash_attn
