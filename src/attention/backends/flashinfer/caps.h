// What flashinfer can do on a GPU: the mma.sync kernels of kernels/, any page size.
#pragma once

#include "attention/base_caps.h"
#include "attention/cuda/mla/mla_caps.h"

namespace warpweave::flashinfer {

inline constexpr Caps kCaps = [] {
  Caps caps = fixed_split_caps(kPagedCudaCaps);
  caps.name = "flashinfer";
  caps.summary = "mma.sync kernels over paged K/V: split-KV decode planned on the device, tiled prefill";
  return caps;
}();

// Latent attention (DeepSeek): the kernels of attention/cuda/mla.
inline constexpr cuda::MlaName kMla = {
    .name = "flashinfer",
    .summary = "MLA by mma.sync over ragged page tables",
    .choice = cuda::MlaChoice::mma,
    .preferred_page_size = 1,
};
inline constexpr Caps kMlaCaps = cuda::mla_caps(kMla);

}  // namespace warpweave::flashinfer
