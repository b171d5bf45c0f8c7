// The tile kernels as they are laid out for Intel GPUs, with the page size compiled in.
#pragma once

#include "attention/base_caps.h"

namespace warpweave::intel_xpu {

inline constexpr Caps kCaps = [] {
  Caps caps = kHostCaps;
  caps.name = "intel_xpu";
  caps.summary = "OpenCL on Intel GPUs, and on a CPU through its OpenCL driver; pages 32, 64, 128";
  caps.archs = {DeviceArch::cpu_x86_64, DeviceArch::cpu_other, DeviceArch::intel_xe};
  caps.head_dims = IntChoice::any_up_to(256);
  caps.page_sizes = IntChoice::of({32, 64, 128});
  caps.right_window = false;
  caps.kernels = {.prefill = "tile", .decode = "tile"};
  return caps;
}();

}  // namespace warpweave::intel_xpu
