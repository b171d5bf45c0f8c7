#include "attention/cuda/mla/sm90_mla_select.cuh"

namespace warpweave::cuda {

MlaKernel sm90_mla_fp4(bool paired) {
  return sm90_mla_kernel<ptx::Bf16, MlaFormat::fp4, MlaMerging::by_kernel>(false, paired);
}

}  // namespace warpweave::cuda
