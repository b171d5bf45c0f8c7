// The per-head GEMMs of latent attention (latent.h) by wgmma (sm_90), where a row's bits may depend on the number of rows
// (HeadGemmCall::by_rows): from so many rows on that a tile of 64 is worth it.
#pragma once

#include "ops/cuda/latent.h"

namespace warpweave::gpu {

bool latent_wgmma_takes(const HeadGemmCall& call);
void head_gemm_wgmma(const HeadGemmCall& call, Stream stream);

}  // namespace warpweave::gpu
