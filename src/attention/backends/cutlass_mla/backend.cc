#include "attention/backends/cutlass_mla/caps.h"
#include "attention/cuda/mla/mla_backend.h"
#include "attention/registry.h"

namespace warpweave::cutlass_mla {
namespace {

std::unique_ptr<AttentionBackend> create(const BackendContext&) {
  return std::make_unique<cuda::MlaBackend>(kMlaCaps, cuda::MlaChoice::wgmma);
}

}  // namespace
}  // namespace warpweave::cutlass_mla

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(cutlass_mla, cutlass_mla::kMlaCaps, cutlass_mla::create)
}
