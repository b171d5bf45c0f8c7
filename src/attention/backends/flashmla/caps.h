// What flashmla can do here: latent attention by the Hopper kernels of attention/cuda/mla, on any page size.
#pragma once

#include "attention/cuda/mla/mla_caps.h"

namespace warpweave::flashmla {

inline constexpr Caps kMlaCaps = cuda::mla_caps({.name = "flashmla",
                                                    .summary = "MLA on Hopper: WGMMA over TMA copies, mma.sync for few rows; pages of 64",
                                                    .kernels = cuda::kMlaFaster,
                                                    .preferred_page_size = 64});

}  // namespace warpweave::flashmla
