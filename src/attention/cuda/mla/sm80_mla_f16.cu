#include "attention/cuda/mla/mla_variants.h"
#include "attention/cuda/mla/sm80_mla.cuh"

namespace warpweave::cuda {
namespace {

template <int kRowBlocks>
MlaKernel kernel_of(MlaFormat format) {
  using E = ptx::F16;
  switch (format) {
    case MlaFormat::same16: return launch_sm80_mla<Sm80MlaConfig<E, MlaFormat::same16, kRowBlocks>>;
    case MlaFormat::e4m3: return launch_sm80_mla<Sm80MlaConfig<E, MlaFormat::e4m3, kRowBlocks>>;
    case MlaFormat::ds_mla:
    case MlaFormat::fp4: break;
  }
  return nullptr;
}

}  // namespace

MlaKernel sm80_mla_f16(MlaFormat format, int tile_rows) {
  return tile_rows == 16 ? kernel_of<1>(format) : kernel_of<2>(format);
}

}  // namespace warpweave::cuda
