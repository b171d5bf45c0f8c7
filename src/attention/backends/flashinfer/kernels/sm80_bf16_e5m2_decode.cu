#include "attention/backends/flashinfer/kernels/sm80_decode_dispatch.cuh"

namespace warpweave::cuda {
DecodeVariant decode_bf16_e5m2(const DecodeNeed& need) {
  return decode_variant_of<ptx::Bf16, KvStorage::e5m2>(need);
}
}  // namespace warpweave::cuda
