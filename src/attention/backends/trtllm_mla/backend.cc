#include "attention/backends/trtllm_mla/caps.h"
#include "attention/cuda/mla/mla_backend.h"
#include "attention/registry.h"

namespace warpweave::trtllm_mla {
namespace {

std::unique_ptr<AttentionBackend> create(const BackendContext&) {
  return std::make_unique<cuda::MlaBackend>(kMlaCaps, cuda::MlaChoice::wgmma);
}

}  // namespace
}  // namespace warpweave::trtllm_mla

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(trtllm_mla, trtllm_mla::kMlaCaps, trtllm_mla::create)
}
