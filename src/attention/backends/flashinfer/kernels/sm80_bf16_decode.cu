#include "attention/backends/flashinfer/kernels/sm80_decode_dispatch.cuh"

namespace warpweave::cuda {
DecodeVariant decode_bf16(const DecodeNeed& need) {
  return decode_variant_of<ptx::Bf16, KvStorage::same16>(need);
}
}  // namespace warpweave::cuda
