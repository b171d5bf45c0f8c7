#include "attention/backends/trtllm_mha/caps.h"
#include "attention/backends/flashinfer/kernels/kernels.h"
#include "attention/cuda/paged_backend.h"
#include "attention/registry.h"

namespace warpweave::trtllm_mha {
namespace {

constexpr cuda::KernelFamily kKernels = {cuda::sm80_decode_layout, cuda::sm80_decode,
                                         cuda::sm80_extend_layout, cuda::sm80_extend};

std::unique_ptr<AttentionBackend> create(const BackendContext& context) {
  return std::make_unique<cuda::PagedCudaBackend>(kCaps, kKernels, context);
}

}  // namespace
}  // namespace warpweave::trtllm_mha

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(trtllm_mha, trtllm_mha::kCaps, trtllm_mha::create)
}
