// The row kernels of a tier; tests compare every tier that the CPU can run.
#pragma once

#include "device/cpu/cpu_info.h"
#include "ops/kernels/elementwise_kernels.h"

namespace warpweave {

const ElementwiseKernels& elementwise_kernels_of(CpuTier tier);

}  // namespace warpweave
