#include "attention/backends/fa3/kernels/sm90_variants.h"

#include "attention/backends/fa3/kernels/sm90_short_launch.cuh"

namespace warpweave::cuda {

Sm90ShortKernel sm90_short_bf16(int head_dim, int tile_rows, bool boxes) {
  return sm90_short_variant_of<ptx::Bf16>(head_dim, tile_rows, boxes);
}

}  // namespace warpweave::cuda
