// Registers the tile kernels on OpenCL under the name triton.
#include "attention/backends/triton/caps.h"
#include "attention/registry.h"
#include "attention/tile/opencl_attention.h"

namespace warpweave {
BackendRegistration register_attention_triton() {
  return {&triton::kOpenClCaps, tile::create_opencl<triton::kOpenClCaps>, tile::probe_opencl};
}
BackendRegistration register_attention_triton_mla() {
  return {&triton::kOpenClMlaCaps, tile::create_opencl<triton::kOpenClMlaCaps>, tile::probe_opencl};
}
}  // namespace warpweave
