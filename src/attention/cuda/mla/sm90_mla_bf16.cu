#include "attention/cuda/mla/sm90_mla_select.cuh"

namespace warpweave::cuda {

MlaKernel sm90_mla_bf16(MlaFormat format, bool boxes, bool paired, bool merges) {
  switch (format) {
    case MlaFormat::e4m3: return sm90_mla_kernel<ptx::Bf16, MlaFormat::e4m3, false>(boxes, paired);
    case MlaFormat::ds_mla: return sm90_mla_kernel<ptx::Bf16, MlaFormat::ds_mla, false>(boxes, paired);
    case MlaFormat::same16: break;
  }
  if (merges) return sm90_mla_kernel<ptx::Bf16, MlaFormat::same16, true>(boxes, paired);
  return sm90_mla_kernel<ptx::Bf16, MlaFormat::same16, false>(boxes, paired);
}

}  // namespace warpweave::cuda
