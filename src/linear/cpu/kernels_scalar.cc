#include "linear/cpu/tier.h"

namespace warpweave {
const LinearCpuKernels kLinearAttnScalar = linear_attn_kernels();
}  // namespace warpweave
