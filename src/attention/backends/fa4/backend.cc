#include "attention/backends/fa3/kernels/kernels.h"
#include "attention/backends/fa4/caps.h"
#include "attention/cuda/mla/mla_backend.h"
#include "attention/cuda/paged_backend.h"
#include "attention/registry.h"

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(fa4, fa4::kCaps, cuda::create_paged<fa4::kCaps, cuda::kSm90Kernels>)
WW_REGISTER_ATTENTION_BACKEND(fa4_mla, fa4::kMlaCaps, cuda::create_mla<fa4::kMlaCaps, fa4::kMla.choice>)
}
