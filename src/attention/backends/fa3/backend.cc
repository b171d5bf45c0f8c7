#include "attention/backends/fa3/caps.h"
#include "attention/backends/fa3/kernels/kernels.h"
#include "attention/cuda/mla/mla_backend.h"
#include "attention/cuda/paged_backend.h"
#include "attention/registry.h"

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(fa3, fa3::kCaps, cuda::create_paged<fa3::kCaps, cuda::kSm90Kernels>)
WW_REGISTER_ATTENTION_BACKEND(fa3_mla, fa3::kMlaCaps, cuda::create_mla<fa3::kMlaCaps, fa3::kMla.choice>)
}
