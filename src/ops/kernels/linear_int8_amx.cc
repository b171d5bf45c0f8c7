#if defined(__x86_64__)
#include "ops/kernels/linear_int8_tiles.h"

namespace warpweave {
const Int8Kernels kInt8Amx = int8_tile_kernels();
}  // namespace warpweave
#endif
