// Which instance of the Hopper MLA kernel (sm90_mla.cuh) runs.
#pragma once

#include "attention/cuda/mla/mla_variants.h"
#include "attention/cuda/mla/sm90_mla.cuh"

namespace warpweave::cuda {

template <class Element, MlaFormat kFormat, bool kMerges_>
MlaKernel sm90_mla_kernel(bool boxes, bool paired) {
  constexpr bool kMerges = kMerges_ && kFormat == MlaFormat::same16;
  if constexpr (kFormat == MlaFormat::same16) {
    if (boxes && paired) return launch_sm90_mla<Sm90MlaConfig<Element, kFormat, true, true, kMerges>>;
    if (boxes) return launch_sm90_mla<Sm90MlaConfig<Element, kFormat, true, false, kMerges>>;
  }
  // Codes without scales are widened faster than they are sent (docs/gpu-tuning.md).
  if constexpr (kFormat != MlaFormat::e4m3) {
    if (paired) return launch_sm90_mla<Sm90MlaConfig<Element, kFormat, false, true, kMerges>>;
  }
  return launch_sm90_mla<Sm90MlaConfig<Element, kFormat, false, false, kMerges>>;
}

}  // namespace warpweave::cuda
