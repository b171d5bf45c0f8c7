// Registers the tile kernels on OpenCL under the name intel_xpu.
#include "attention/backends/intel_xpu/caps.h"
#include "attention/registry.h"
#include "attention/tile/opencl_attention.h"

namespace warpweave {
BackendRegistration register_attention_intel_xpu() {
  return {&intel_xpu::kCaps, tile::create_opencl<intel_xpu::kCaps>, tile::probe_opencl};
}
}  // namespace warpweave
