#include "linear/cpu/tier.h"

namespace warpweave {
const LinearCpuKernels kLinearScalar = linear_kernels();
}  // namespace warpweave
