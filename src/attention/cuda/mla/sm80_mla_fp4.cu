#include "attention/cuda/mla/mla_variants.h"
#include "attention/cuda/mla/sm80_mla.cuh"

namespace warpweave::cuda {

MlaKernel sm80_mla_fp4(int tile_rows) {
  return tile_rows == 16 ? launch_sm80_mla<Sm80MlaConfig<ptx::Bf16, MlaFormat::fp4, 1>>
                         : launch_sm80_mla<Sm80MlaConfig<ptx::Bf16, MlaFormat::fp4, 2>>;
}

}  // namespace warpweave::cuda
