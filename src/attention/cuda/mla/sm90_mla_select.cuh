// Which instance of the Hopper MLA kernel (sm90_mla.cuh) runs.
#pragma once

#include "attention/cuda/mla/mla_variants.h"
#include "attention/cuda/mla/sm90_mla.cuh"

namespace warpweave::cuda {

template <class Element, MlaFormat kFormat, MlaMerging kMerging>
MlaKernel sm90_mla_kernel(bool boxes, bool paired) {
  constexpr bool kPairs = kMerging != MlaMerging::shares;
  if constexpr (kFormat == MlaFormat::same16 && kPairs) {
    if (boxes && paired) return launch_sm90_mla<Sm90MlaConfig<Element, kFormat, true, true, kMerging>>;
  }
  if constexpr (kFormat == MlaFormat::same16) {
    if (boxes) return launch_sm90_mla<Sm90MlaConfig<Element, kFormat, true, false, kMerging>>;
  }
  // Codes without scales are widened faster than they are sent (docs/gpu-tuning.md).
  if constexpr (kFormat != MlaFormat::e4m3 && kPairs) {
    if (paired) return launch_sm90_mla<Sm90MlaConfig<Element, kFormat, false, true, kMerging>>;
  }
  return launch_sm90_mla<Sm90MlaConfig<Element, kFormat, false, false, kMerging>>;
}

// Of 16-bit pools.
template <class Element>
MlaKernel sm90_mla_same16(bool boxes, bool paired, MlaMerging merging) {
  switch (merging) {
    case MlaMerging::last_cta: return sm90_mla_kernel<Element, MlaFormat::same16, MlaMerging::last_cta>(boxes, paired);
    case MlaMerging::shares: return sm90_mla_kernel<Element, MlaFormat::same16, MlaMerging::shares>(boxes, paired);
    case MlaMerging::by_kernel: break;
  }
  return sm90_mla_kernel<Element, MlaFormat::same16, MlaMerging::by_kernel>(boxes, paired);
}

}  // namespace warpweave::cuda
