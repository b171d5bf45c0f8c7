// The kernel behind merge_states_on_gpu: one warp a row and head, sums in the order of the states.
#pragma once

#include <cuda_runtime_api.h>

#include "capi/gpu.h"

namespace warpweave::capi {

cudaError_t launch_merge_states(const GpuMerge& merge, cudaStream_t stream);

}  // namespace warpweave::capi
