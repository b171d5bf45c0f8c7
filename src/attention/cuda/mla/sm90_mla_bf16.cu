#include "attention/cuda/mla/sm90_mla.cuh"
#include "attention/cuda/mla/mla_variants.h"

namespace warpweave::cuda {

MlaKernel sm90_mla_bf16(MlaFormat format, bool boxes, bool paired) {
  using E = ptx::Bf16;
  switch (format) {
    case MlaFormat::e4m3: return launch_sm90_mla<Sm90MlaConfig<E, MlaFormat::e4m3, false, false>>;
    case MlaFormat::ds_mla: return launch_sm90_mla<Sm90MlaConfig<E, MlaFormat::ds_mla, false, false>>;
    case MlaFormat::same16: break;
  }
  if (!boxes) return launch_sm90_mla<Sm90MlaConfig<E, MlaFormat::same16, false, false>>;
  return paired ? launch_sm90_mla<Sm90MlaConfig<E, MlaFormat::same16, true, true>>
                : launch_sm90_mla<Sm90MlaConfig<E, MlaFormat::same16, true, false>>;
}

}  // namespace warpweave::cuda
