// Long requests as many short ones, so that the kernels of decode compute a prompt: each slice sees as far as its last
// token does, and reads the pages of its request. What causal attention hides is then not multiplied either.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/cuda/mla/mla_requests.h"

namespace warpweave::cuda {

// Cuts the requests of `p`, all of whose query tokens, `num_tokens`, follow one another; causal, without tree masks.
cudaError_t launch_mla_slices(const MlaParams& p, int num_tokens, const MlaSlices& slices, cudaStream_t stream);

}  // namespace warpweave::cuda
