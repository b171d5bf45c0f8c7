// The kernel behind torch_native on CUDA GPUs; see cuda_attention.cu.
#pragma once

#include "attention/backend.h"

namespace warpweave::torch_native {

// Attention of all rows of the batch, from its device arrays. Only enqueues.
Status launch_cuda_attention(const ForwardBatch& batch, const AttentionCall& call);

// What the kernel was compiled for (80: sm_80): PTX that a newer GPU's driver compiled keeps its number.
// 0 without a GPU.
int cuda_code_version();

}  // namespace warpweave::torch_native
