// AVX-512 F/BW/DQ/VL: sixteen lanes.
#define WW_LANES 16
#include "attention/cpu_tiles/kernels_generic.h"

namespace warpweave::cpu_tiles {

const Kernels kAvx512Kernels = {"avx512",   false, pack_q_f32, pack_k_f32, pack_v_f32,
                                gemm<MultiplyFloats, 4>, softmax<nullptr>, scale, softcap};

}  // namespace warpweave::cpu_tiles
