// dual_chunk_flash_attn on NVIDIA GPUs: the tile kernels, which stage the form of a query that a block
// of keys meets; all blocks share one online softmax.
#include "attention/backends/dual_chunk_flash_attn/caps.h"
#include "attention/registry.h"
#include "attention/tile/cuda_attention.h"

namespace warpweave::dual_chunk_flash_attn {
namespace {

std::unique_ptr<AttentionBackend> create_cuda(const BackendContext&) {
  return tile::create_cuda_attention({.caps = &kCudaCaps});
}

}  // namespace
}  // namespace warpweave::dual_chunk_flash_attn

namespace warpweave {
BackendRegistration register_attention_dual_chunk_flash_attn_cuda() {
  return {&dual_chunk_flash_attn::kCudaCaps, dual_chunk_flash_attn::create_cuda, tile::probe_nvrtc};
}
}  // namespace warpweave
