#include "attention/backends/flashinfer/kernels/sm80_decode_dispatch.cuh"

namespace warpweave::cuda {
DecodeVariant decode_f16_e2m1(const DecodeNeed& need) {
  return decode_variant_of<ptx::F16, KvStorage::e2m1>(need);
}
}  // namespace warpweave::cuda
