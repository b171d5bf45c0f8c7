#if defined(__x86_64__)
#include "linear/cpu/tier.h"

namespace warpweave {
const LinearCpuKernels kLinearAttnAvx2 = linear_attn_kernels();
}  // namespace warpweave
#endif
