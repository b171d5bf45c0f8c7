#include "attention/backends/flashinfer/caps.h"
#include "attention/backends/flashinfer/kernels/kernels.h"
#include "attention/cuda/mla/mla_backend.h"
#include "attention/cuda/paged_backend.h"
#include "attention/registry.h"

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(flashinfer, flashinfer::kCaps, cuda::create_paged<flashinfer::kCaps, cuda::kSm80Kernels>)
WW_REGISTER_ATTENTION_BACKEND(flashinfer_mla, flashinfer::kMlaCaps,
                              cuda::create_mla<flashinfer::kMlaCaps, flashinfer::kMla.choice>)
}
