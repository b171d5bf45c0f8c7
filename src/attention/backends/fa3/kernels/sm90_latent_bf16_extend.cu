#include "attention/backends/fa3/kernels/sm90_extend.cuh"
#include "attention/backends/fa3/kernels/sm90_variants.h"

namespace warpweave::cuda {

Sm90Variant sm90_latent_bf16() {
  return sm90_variant_of<Sm90Config<ptx::Bf16, 192, 2, 128, 2, 2, Sm90Source::boxes, false, 128>>();
}

}  // namespace warpweave::cuda
