// The launch of recurrent_verify.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include "linear/cuda/linear_params.h"

namespace warpweave::linear {

void launch_verify_exactly(const LinearParams& p, cudaStream_t stream);

}  // namespace warpweave::linear
