// One function per file of instantiations; null: not written for that.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/cuda/mla/mla_decode.h"
#include "attention/cuda/split_work.h"

namespace warpweave::cuda {

using MlaKernel = cudaError_t (*)(const MlaParams&, const SplitWork&, cudaStream_t);

// `boxes`: by TMA; `paired`: clusters of two CTAs; `merging`: of other pools, by a kernel.
MlaKernel sm90_mla_bf16(MlaFormat format, bool boxes, bool paired, MlaMerging merging);
MlaKernel sm90_mla_f16(MlaFormat format, bool boxes, bool paired, MlaMerging merging);
MlaKernel sm90_mla_fp4(bool paired);  // of bf16 models, as all packed tokens

// Tiles of 16 or 32 rows.
MlaKernel sm80_mla_bf16(MlaFormat format, int tile_rows);
MlaKernel sm80_mla_f16(MlaFormat format, int tile_rows);
MlaKernel sm80_mla_fp4(int tile_rows);
constexpr int sm80_mla_tile_rows(int rows) { return rows <= 16 ? 16 : 32; }
constexpr int sm80_mla_ctas_per_sm(int rows) { return rows <= 16 ? 2 : 1; }


// Behind the attention kernel.
cudaError_t launch_mla_combine(const MlaShape& shape, const MlaParams& p, const SplitWork& work, cudaStream_t stream);

}  // namespace warpweave::cuda
