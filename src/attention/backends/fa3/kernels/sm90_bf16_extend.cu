#include "attention/backends/fa3/kernels/sm90_extend.cuh"
#include "attention/backends/fa3/kernels/sm90_variants.h"

namespace warpweave::cuda {

Sm90Variant sm90_bf16(int head_dim, Sm90Source source, Sm90Tiling tiling) {
  const bool tall = tiling == Sm90Tiling::tall, pairs = tiling == Sm90Tiling::pairs;
  // dim, warpgroups, KV block, stages of K, of V
  switch (head_dim) {
    case 64:
      if (source != Sm90Source::boxes || !tall) return sm90_variant<ptx::Bf16, 64, 2, 128, 3, 3>(source, pairs);
      return sm90_variant_of<Sm90Config<ptx::Bf16, 64, 3, 128, 4, 4, Sm90Source::boxes>>();
    case 128:
      if (source == Sm90Source::gather || !tall) return sm90_variant<ptx::Bf16, 128, 2, 128, 3, 2>(source, pairs);
      if (source == Sm90Source::boxes)
        return sm90_variant_of<Sm90Config<ptx::Bf16, 128, 3, 128, 2, 2, Sm90Source::boxes>>();
      return sm90_variant_of<Sm90Config<ptx::Bf16, 128, 3, 128, 2, 2, Sm90Source::copies>>();
    case 256: return sm90_variant<ptx::Bf16, 256, 2, 64, 2, 2>(source, pairs);
    default: return {};
  }
}

}  // namespace warpweave::cuda
