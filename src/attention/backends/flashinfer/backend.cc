#include "attention/backends/flashinfer/caps.h"
#include "attention/backends/flashinfer/kernels/kernels.h"
#include "attention/cuda/mla/mla_backend.h"
#include "attention/cuda/paged_backend.h"
#include "attention/registry.h"

namespace warpweave::flashinfer {
namespace {

constexpr cuda::KernelFamily kKernels = {cuda::sm80_decode_layout, cuda::sm80_decode,
                                         cuda::sm80_extend_layout, cuda::sm80_extend};

std::unique_ptr<AttentionBackend> create(const BackendContext& context) {
  return std::make_unique<cuda::PagedCudaBackend>(kCaps, kKernels, context);
}

}  // namespace
}  // namespace warpweave::flashinfer

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(flashinfer, flashinfer::kCaps, flashinfer::create)
WW_REGISTER_ATTENTION_BACKEND(flashinfer_mla, flashinfer::kMlaCaps,
                              cuda::create_mla<flashinfer::kMlaCaps, flashinfer::kMla.choice>)
}
