#if defined(__x86_64__)
#include "linear/cpu/tier.h"

namespace warpweave {
const LinearCpuKernels kLinearAvx2 = linear_kernels();
}  // namespace warpweave
#endif
