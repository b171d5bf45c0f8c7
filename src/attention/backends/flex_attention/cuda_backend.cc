// flex_attention on NVIDIA GPUs: the tile kernels with the modifiers compiled into them.
#include "attention/backends/flex_attention/caps.h"
#include "attention/backends/flex_attention/cuda_source.h"
#include "attention/registry.h"
#include "attention/tile/cuda_attention.h"

namespace warpweave::flex_attention {
namespace {

std::unique_ptr<AttentionBackend> create_for(const Caps& caps, const BackendContext& context) {
  const CudaSource source = cuda_source(context.modifiers != nullptr ? *context.modifiers : mods::Modifiers{});
  const bool mask = context.modifiers != nullptr && !context.modifiers->mask.empty();
  return tile::create_cuda_attention(
      {.caps = &caps, .modifiers = source.text, .defines = source.defines, .mask_modifier = mask});
}
std::unique_ptr<AttentionBackend> create_cuda(const BackendContext& context) { return create_for(kCudaCaps, context); }
std::unique_ptr<AttentionBackend> create_cuda_mla(const BackendContext& context) {
  return create_for(kCudaMlaCaps, context);
}

}  // namespace
}  // namespace warpweave::flex_attention

namespace warpweave {
BackendRegistration register_attention_flex_attention_cuda() {
  return {&flex_attention::kCudaCaps, flex_attention::create_cuda, tile::probe_nvrtc};
}
BackendRegistration register_attention_flex_attention_cuda_mla() {
  return {&flex_attention::kCudaMlaCaps, flex_attention::create_cuda_mla, tile::probe_nvrtc};
}
}  // namespace warpweave
