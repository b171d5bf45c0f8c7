#include "attention/backends/fa4/caps.h"
#include "attention/backends/fa3/kernels/kernels.h"
#include "attention/backends/flashinfer/kernels/kernels.h"
#include "attention/cuda/mla/mla_backend.h"
#include "attention/cuda/paged_backend.h"
#include "attention/registry.h"

namespace warpweave::fa4 {
namespace {

constexpr cuda::KernelFamily kKernels = {cuda::sm80_decode_layout, cuda::sm80_decode,
                                         cuda::sm90_extend_layout, cuda::sm90_extend,
                                         cuda::sm90_short_layout, cuda::sm90_short_extend,
                                         cuda::sm90_short_workspace_bytes};

std::unique_ptr<AttentionBackend> create(const BackendContext& context) {
  return std::make_unique<cuda::PagedCudaBackend>(kCaps, kKernels, context);
}

}  // namespace
}  // namespace warpweave::fa4

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(fa4, fa4::kCaps, fa4::create)
WW_REGISTER_ATTENTION_BACKEND(fa4_mla, fa4::kMlaCaps, cuda::create_mla<fa4::kMlaCaps, fa4::kMla.choice>)
}
