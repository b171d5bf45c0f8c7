// For tests that run kernels with dynamic shared memory on the host: after the headers whose kernels have static one,
// and before those whose kernels declare `extern __shared__ char smem[]`, which is this array then.
#pragma once

#include "device/cuda/testing/host_cta.h"

#undef __shared__
#define __shared__

namespace warpweave::cuda {

alignas(1024) inline char smem[228 * 1024];

}  // namespace warpweave::cuda
