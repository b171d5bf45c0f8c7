#include "attention/backends/fa3/caps.h"
#include "attention/backends/fa3/kernels/kernels.h"
#include "attention/backends/flashinfer/kernels/kernels.h"
#include "attention/cuda/mla/mla_backend.h"
#include "attention/cuda/paged_backend.h"
#include "attention/registry.h"

namespace warpweave::fa3 {
namespace {

constexpr cuda::KernelFamily kKernels = {cuda::sm80_decode_layout, cuda::sm80_decode,
                                         cuda::sm90_extend_layout, cuda::sm90_extend,
                                         cuda::sm90_short_layout, cuda::sm90_short_extend,
                                         cuda::sm90_short_workspace_bytes};

std::unique_ptr<AttentionBackend> create(const BackendContext& context) {
  return std::make_unique<cuda::PagedCudaBackend>(kCaps, kKernels, context);
}

}  // namespace
}  // namespace warpweave::fa3

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(fa3, fa3::kCaps, fa3::create)
WW_REGISTER_ATTENTION_BACKEND(fa3_mla, fa3::kMlaCaps, cuda::create_mla<fa3::kMlaCaps, fa3::kMla.choice>)
}
