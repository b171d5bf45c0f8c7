#include "attention/backends/trtllm_mla/caps.h"
#include "attention/cuda/mla/mla_backend.h"
#include "attention/registry.h"

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(trtllm_mla, trtllm_mla::kMlaCaps,
                              cuda::create_mla<trtllm_mla::kMlaCaps, trtllm_mla::kMla.choice>)
}
