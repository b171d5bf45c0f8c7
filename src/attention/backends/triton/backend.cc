// Registers the tile kernels on OpenCL under the name triton.
#include "attention/backends/triton/caps.h"
#include "attention/registry.h"
#include "attention/tile/opencl_attention.h"

namespace warpweave::triton {
namespace {

std::unique_ptr<AttentionBackend> create(const BackendContext& context) {
  return tile::create_opencl_attention(context, {.caps = &kOpenClCaps});
}
std::unique_ptr<AttentionBackend> create_mla(const BackendContext& context) {
  return tile::create_opencl_attention(context, {.caps = &kOpenClMlaCaps});
}

}  // namespace
}  // namespace warpweave::triton

namespace warpweave {
BackendRegistration register_attention_triton() {
  return {&triton::kOpenClCaps, triton::create, tile::probe_opencl};
}
BackendRegistration register_attention_triton_mla() {
  return {&triton::kOpenClMlaCaps, triton::create_mla, tile::probe_opencl};
}
}  // namespace warpweave
