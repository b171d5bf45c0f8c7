#include "attention/backends/flashinfer/kernels/sm80_extend_dispatch.cuh"

namespace warpweave::cuda {
ExtendVariant extend_f16_e2m1(int head_dim, int tile_rows) {
  return extend_variant_of<ptx::F16, KvStorage::e2m1>(head_dim, tile_rows);
}
}  // namespace warpweave::cuda
