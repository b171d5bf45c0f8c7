// One function per file of instantiations.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/cuda/attention_params.h"

namespace warpweave::cuda {

struct Sm90Variant {
  int tile_rows = 0;
  cudaError_t (*launch)(const AttentionParams&, const ExtendWorklist&, int max_items, int num_sms,
                        cudaStream_t) = nullptr;
};

// gather: for pages whose boxes are too small for the copy engine.
Sm90Variant sm90_bf16(int head_dim, bool gather);
Sm90Variant sm90_f16(int head_dim, bool gather);
// e4m3 products, for e4m3 K and V on pages of a multiple of 8 tokens; not for every head dim.
Sm90Variant sm90_fp8_bf16(int head_dim);
Sm90Variant sm90_fp8_f16(int head_dim);

}  // namespace warpweave::cuda
