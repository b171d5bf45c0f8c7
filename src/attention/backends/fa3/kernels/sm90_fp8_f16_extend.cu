#include "attention/backends/fa3/kernels/sm90_fp8_extend.cuh"

namespace warpweave::cuda {

Sm90Variant sm90_fp8_f16(int head_dim) {
  // dim, warpgroups, KV block, Q in registers, turns
  switch (head_dim) {
    case 64: return sm90_fp8_variant<Sm90Fp8Config<ptx::F16, 64, 2, 192, true, Sm90Turns::both>>();
    case 128: return sm90_fp8_variant<Sm90Fp8Config<ptx::F16, 128, 2, 192, false, Sm90Turns::both>>();
    default: return {};
  }
}

}  // namespace warpweave::cuda
