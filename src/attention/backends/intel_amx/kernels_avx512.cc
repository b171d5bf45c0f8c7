// AVX-512 F/BW/DQ/VL: sixteen lanes, f32 arithmetic for every pool format.
#include "attention/backends/intel_amx/vec_avx512.h"

namespace warpweave::intel_amx {

constinit const KernelSet kAvx512Kernels = f32_kernels<Vec, 4>("avx512");

}  // namespace warpweave::intel_amx
