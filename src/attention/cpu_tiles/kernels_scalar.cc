// What every CPU runs: four lanes, as the compiler's baseline has them.
#define WW_LANES 4
#include "attention/cpu_tiles/kernels_generic.h"

namespace warpweave::cpu_tiles {

const Kernels kScalarKernels = {"scalar",   false, pack_q_f32, pack_k_f32, pack_v_f32,
                                gemm<MultiplyFloats, 2>, softmax<nullptr>, scale, softcap};

}  // namespace warpweave::cpu_tiles
