#if defined(__x86_64__)
#include "ops/kernels/elementwise_rows.h"

namespace warpweave {
const ElementwiseKernels kElementwiseAvx2 = elementwise_kernels();
}  // namespace warpweave
#endif
