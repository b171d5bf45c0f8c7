#include "attention/backends/trtllm_mha/caps.h"
#include "attention/backends/flashinfer/kernels/kernels.h"
#include "attention/cuda/paged_backend.h"
#include "attention/registry.h"

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(trtllm_mha, trtllm_mha::kCaps, cuda::create_paged<trtllm_mha::kCaps, cuda::kSm80Kernels>)
}
