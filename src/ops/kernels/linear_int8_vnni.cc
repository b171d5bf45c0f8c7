#if defined(__x86_64__)
#include "ops/kernels/linear_int8.h"

namespace warpweave {
const Int8Kernels kInt8Vnni = int8_kernels();
}  // namespace warpweave
#endif
