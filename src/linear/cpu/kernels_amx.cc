#if defined(__x86_64__)
#include "linear/cpu/tile_gemm.h"

namespace warpweave {
const LinearTileKernels kLinearAttnAmxTiles = linear_tile_kernels();
}  // namespace warpweave
#endif
