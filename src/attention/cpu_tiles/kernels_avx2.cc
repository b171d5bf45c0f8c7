// AVX2 with FMA: eight lanes.
#define WW_LANES 8
#include "attention/cpu_tiles/kernels_generic.h"

namespace warpweave::cpu_tiles {

const Kernels kAvx2Kernels = {"avx2",     false, pack_q_f32, pack_k_f32, pack_v_f32,
                              gemm<MultiplyFloats, 2>, softmax<nullptr>, scale, softcap};

}  // namespace warpweave::cpu_tiles
