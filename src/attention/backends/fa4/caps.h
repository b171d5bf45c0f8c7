// What fa4 can do here: the Hopper kernels on pages of 128 tokens, the KV block, so that one copy
// fills a stage. Lazy rescale is in them; polynomial exponentials are not: they were slower on sm_90.
#pragma once

#include "attention/backends/fa3/caps.h"
#include "attention/caps.h"
#include "attention/cuda/mla/mla_caps.h"

namespace warpweave::fa4 {

inline constexpr Caps kCaps = [] {
  Caps caps = fa3::kCaps;
  caps.name = "fa4";
  caps.summary = "Hopper kernels with lazy rescale on pages of 128 tokens; split-KV decode";
  caps.page_sizes = IntChoice::of({128});
  caps.workspace_bytes = 12 << 20;
  return caps;
}();

// Latent attention (DeepSeek): the kernels of attention/cuda/mla.
inline constexpr cuda::MlaName kMla = {
    .name = "fa4",
    .summary = "MLA on Hopper: WGMMA over TMA copies",
    .choice = cuda::MlaChoice::wgmma,
    .min_cuda_version = 12030,
};
inline constexpr Caps kMlaCaps = cuda::mla_caps(kMla);

}  // namespace warpweave::fa4
