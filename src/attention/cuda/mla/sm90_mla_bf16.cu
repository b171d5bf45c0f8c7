#include "attention/cuda/mla/sm90_mla_select.cuh"

namespace warpweave::cuda {

MlaKernel sm90_mla_bf16(MlaFormat format, bool boxes, bool paired) {
  switch (format) {
    case MlaFormat::e4m3: return sm90_mla_kernel<ptx::Bf16, MlaFormat::e4m3>(boxes, paired);
    case MlaFormat::ds_mla: return sm90_mla_kernel<ptx::Bf16, MlaFormat::ds_mla>(boxes, paired);
    case MlaFormat::same16: break;
  }
  return sm90_mla_kernel<ptx::Bf16, MlaFormat::same16>(boxes, paired);
}

}  // namespace warpweave::cuda
