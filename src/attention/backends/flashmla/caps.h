// What flashmla can do here: latent attention by the Hopper kernels of attention/cuda/mla, on any page size.
#pragma once

#include "attention/cuda/mla/mla_caps.h"

namespace warpweave::flashmla {

inline constexpr cuda::MlaName kMla = {
    .name = "flashmla",
    .summary = "MLA on Hopper: WGMMA over TMA copies, mma.sync for few rows; pages of 64",
    .choice = cuda::MlaChoice::faster,
    .preferred_page_size = 64,
};
inline constexpr Caps kMlaCaps = cuda::mla_caps(kMla);

}  // namespace warpweave::flashmla
