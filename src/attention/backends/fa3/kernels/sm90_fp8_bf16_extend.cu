#include "attention/backends/fa3/kernels/sm90_fp8_extend.cuh"

namespace warpweave::cuda {

Sm90Variant sm90_fp8_bf16(int head_dim) {
  // dim, warpgroups, KV block (Fp8Products::sum_tokens), Q in registers, turns
  switch (head_dim) {
    case 64: return sm90_fp8_variant<Sm90Fp8Config<ptx::Bf16, 64, 2, 160, true, Sm90Turns::apart>>();
    case 128: return sm90_fp8_variant<Sm90Fp8Config<ptx::Bf16, 128, 2, 160, true, Sm90Turns::apart>>();
    default: return {};
  }
}

}  // namespace warpweave::cuda
