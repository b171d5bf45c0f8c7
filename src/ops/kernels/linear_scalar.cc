#include "ops/kernels/linear_tile.h"

namespace warpweave {
const LinearKernels kLinearScalar = linear_kernels(nullptr, &kInt8Scalar);
}  // namespace warpweave
