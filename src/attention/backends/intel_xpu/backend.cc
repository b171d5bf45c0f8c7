// Registers the tile kernels on OpenCL under the name intel_xpu.
#include "attention/backends/intel_xpu/caps.h"
#include "attention/registry.h"
#include "attention/tile/opencl_attention.h"

namespace warpweave::intel_xpu {
namespace {

std::unique_ptr<AttentionBackend> create(const BackendContext& context) {
  return tile::create_opencl_attention(context, {.caps = &kCaps});
}

}  // namespace
}  // namespace warpweave::intel_xpu

namespace warpweave {
BackendRegistration register_attention_intel_xpu() {
  return {&intel_xpu::kCaps, intel_xpu::create, tile::probe_opencl};
}
}  // namespace warpweave
