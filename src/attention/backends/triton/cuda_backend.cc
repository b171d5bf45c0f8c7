// Registers the tile kernels on NVIDIA GPUs under the name triton.
#include "attention/backends/triton/caps.h"
#include "attention/registry.h"
#include "attention/tile/cuda_attention.h"

namespace warpweave::triton {
namespace {

std::unique_ptr<AttentionBackend> create_cuda(const BackendContext&) {
  return tile::create_cuda_attention({.caps = &kCudaCaps});
}
std::unique_ptr<AttentionBackend> create_cuda_mla(const BackendContext&) {
  return tile::create_cuda_attention({.caps = &kCudaMlaCaps});
}

}  // namespace
}  // namespace warpweave::triton

namespace warpweave {
BackendRegistration register_attention_triton_cuda() {
  return {&triton::kCudaCaps, triton::create_cuda, tile::probe_nvrtc};
}
BackendRegistration register_attention_triton_cuda_mla() {
  return {&triton::kCudaMlaCaps, triton::create_cuda_mla, tile::probe_nvrtc};
}
}  // namespace warpweave
