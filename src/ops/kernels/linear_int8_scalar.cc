#include "ops/kernels/linear_int8.h"

namespace warpweave {
const Int8Kernels kInt8Scalar = int8_kernels();
}  // namespace warpweave
