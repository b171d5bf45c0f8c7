// Registers the tile kernels on NVIDIA GPUs under the name triton.
#include "attention/backends/triton/caps.h"
#include "attention/registry.h"
#include "attention/tile/cuda_attention.h"

namespace warpweave::triton {
namespace {

std::unique_ptr<AttentionBackend> create_cuda(const BackendContext&) {
  return tile::create_cuda_attention({.caps = &kCudaCaps});
}

}  // namespace
}  // namespace warpweave::triton

namespace warpweave {
BackendRegistration register_attention_triton_cuda() {
  return {&triton::kCudaCaps, triton::create_cuda, tile::probe_nvrtc};
}
}  // namespace warpweave
