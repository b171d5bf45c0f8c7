// The kernel behind torch_native on CUDA GPUs; see cuda_attention.cu.
#pragma once

#include "attention/backend.h"

namespace warpweave::torch_native {

// Attention of all rows of the batch, from its device arrays. Only enqueues.
void launch_cuda_attention(const ForwardBatch& batch, const AttentionCall& call);

}  // namespace warpweave::torch_native
