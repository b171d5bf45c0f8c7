#include "attention/backends/flashmla/caps.h"
#include "attention/cuda/mla/mla_backend.h"
#include "attention/registry.h"

namespace warpweave::flashmla {
namespace {

std::unique_ptr<AttentionBackend> create(const BackendContext&) {
  return std::make_unique<cuda::MlaBackend>(kMlaCaps, cuda::MlaChoice::faster);
}

}  // namespace
}  // namespace warpweave::flashmla

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(flashmla, flashmla::kMlaCaps, flashmla::create)
}
