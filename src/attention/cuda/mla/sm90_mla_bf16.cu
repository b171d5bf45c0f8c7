#include "attention/cuda/mla/sm90_mla_select.cuh"

namespace warpweave::cuda {

MlaKernel sm90_mla_bf16(MlaFormat format, bool boxes, bool paired, MlaMerging merging) {
  switch (format) {
    case MlaFormat::e4m3: return sm90_mla_kernel<ptx::Bf16, MlaFormat::e4m3, MlaMerging::by_kernel>(boxes, paired);
    case MlaFormat::ds_mla: return sm90_mla_kernel<ptx::Bf16, MlaFormat::ds_mla, MlaMerging::by_kernel>(boxes, paired);
    case MlaFormat::fp4: return sm90_mla_fp4(paired);
    case MlaFormat::same16: break;
  }
  return sm90_mla_same16<ptx::Bf16>(boxes, paired, merging);
}

}  // namespace warpweave::cuda
