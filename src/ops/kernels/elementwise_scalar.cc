#include "ops/kernels/elementwise_rows.h"

namespace warpweave {
const ElementwiseKernels kElementwiseScalar = elementwise_kernels();
}  // namespace warpweave
