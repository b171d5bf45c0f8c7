#if defined(__x86_64__)
#include "ops/kernels/linear_tile.h"

namespace warpweave {
const LinearKernels kLinearAvx2 = linear_kernels(nullptr, &kInt8Avx2);
}  // namespace warpweave
#endif
