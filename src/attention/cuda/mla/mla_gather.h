// Chunks of the latent cache as dense rows, for a cached prefix that is up-projected and attended to in bounded memory.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/cuda/mla/mla_decode.h"

namespace warpweave::cuda {

// Tokens [begins[r], begins[r] + n) of request r, n = counts[r] or else indptr[r + 1] - indptr[r], become rows
// indptr[r].. of `rows` [indptr[requests], 576] of the element type, e4m3 codes widened with their scales; or, where
// `rope` is there,
// [.., 512] of `rows` and [.., 64] of `rope`. The arrays are the device's; ranges lie within the lengths. `max_tokens`:
// at least the number of rows; those that no token is for are left as they are.
struct MlaGather {
  const int32_t* begins = nullptr;  // [requests]
  const int32_t* indptr = nullptr;  // [requests + 1]
  const int32_t* counts = nullptr;  // [requests] or null
  void* rows = nullptr;
  void* rope = nullptr;
  int max_tokens = 0;
};

// Of `p`: the pool, its page table and format, num_requests, kv_scale.
cudaError_t launch_mla_gather(MlaElement element, MlaFormat format, const MlaParams& p, const MlaGather& gather,
                              cudaStream_t stream);

}  // namespace warpweave::cuda
