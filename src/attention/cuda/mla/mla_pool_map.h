// The tensor map of a latent pool of 16-bit numbers.
#pragma once

#include "attention/cuda/mla/mla_params.h"
#include "device/cuda/tensor_map.h"

namespace warpweave::cuda {

// The pool as [page][1][token in page][576]. What stands beside a box's 128 bytes of a token belongs to a later box:
// bringing it along costs 2 to 3 % (docs/gpu-tuning.md), as if it left the L2 before it is asked for.
inline cudaError_t make_mla_pool_map(CUtensorMap* map, const MlaParams& p, int box_tokens) {
  constexpr cuuint64_t kPages = 1ull << 28;  // page tables name only pages that exist
  const TensorShape shape = {.dims = {kMlaDim, static_cast<cuuint64_t>(p.page_size), 1, kPages},
                             .strides_bytes = {static_cast<cuuint64_t>(p.token_stride_bytes), kMlaDim * 2,
                                               static_cast<cuuint64_t>(p.page_stride_bytes)},
                             .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B};
  return make_tensor_map(map, p.kv, shape, box_tokens);
}

}  // namespace warpweave::cuda
