#include "attention/backends/flashinfer/kernels/sm80_decode_dispatch.cuh"

namespace warpweave::cuda {
DecodeVariant decode_bf16_e2m1(int head_dim, int rows, bool multi_row) {
  return decode_variant_of<ptx::Bf16, KvStorage::e2m1>(head_dim, rows, multi_row);
}
}  // namespace warpweave::cuda
