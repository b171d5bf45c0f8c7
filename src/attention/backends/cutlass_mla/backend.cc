#include "attention/backends/cutlass_mla/caps.h"
#include "attention/cuda/mla/mla_backend.h"
#include "attention/registry.h"

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(cutlass_mla, cutlass_mla::kMlaCaps,
                              cuda::create_mla<cutlass_mla::kMlaCaps, cutlass_mla::kMla.choice>)
}
