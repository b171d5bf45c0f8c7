// What cutlass_mla can do here: latent attention by the Hopper kernels of attention/cuda/mla, on any page size.
#pragma once

#include "attention/cuda/mla/mla_caps.h"

namespace warpweave::cutlass_mla {

inline constexpr cuda::MlaName kMla = {
    .name = "cutlass_mla",
    .summary = "MLA on Hopper: WGMMA over TMA copies; pages of 128",
    .choice = cuda::MlaChoice::wgmma,
    .preferred_page_size = 128,
};
inline constexpr Caps kMlaCaps = cuda::mla_caps(kMla);

}  // namespace warpweave::cutlass_mla
