// What cutlass_mla can do here: latent attention by the Hopper kernels of attention/cuda/mla, on any page size.
#pragma once

#include "attention/cuda/mla/mla_caps.h"

namespace warpweave::cutlass_mla {

inline constexpr Caps kMlaCaps = cuda::mla_caps({.name = "cutlass_mla",
                                                    .summary = "MLA on Hopper: WGMMA over TMA copies; pages of 128",
                                                    .kernels = cuda::kMlaWgmma,
                                                    .preferred_page_size = 128});

}  // namespace warpweave::cutlass_mla
