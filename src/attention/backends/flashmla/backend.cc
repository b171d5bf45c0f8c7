#include "attention/backends/flashmla/caps.h"
#include "attention/cuda/mla/mla_backend.h"
#include "attention/registry.h"

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(flashmla, flashmla::kMlaCaps, cuda::create_mla<flashmla::kMlaCaps, flashmla::kMla.choice>)
}
