#include "attention/backends/fa3/kernels/sm90_fp8_extend.cuh"

namespace warpweave::cuda {

Sm90Variant sm90_fp8_bf16(int head_dim, bool tall) {
  switch (head_dim) {
    case 64: return sm90_fp8_variant<ptx::Bf16, 64>(tall);
    case 128: return sm90_fp8_variant<ptx::Bf16, 128>(tall);
    default: return {};
  }
}

}  // namespace warpweave::cuda
