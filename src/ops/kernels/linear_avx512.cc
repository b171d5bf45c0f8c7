#if defined(__x86_64__)
#include "ops/kernels/linear_tile.h"

// The bf16 units only add bf16_dot; their two kernels live in files of their own. AMX multiplies
// so fast that reading the activations again for every tile shows: its tiles are twice as wide.
namespace warpweave {
const LinearKernels kLinearAvx512 = linear_kernels(nullptr, &kInt8Avx512);
const LinearKernels kLinearAvx512Vnni = linear_kernels(nullptr, &kInt8Vnni);
const LinearKernels kLinearAvx512Bf16 = linear_kernels(gemm_bf16_dot_avx512, &kInt8Vnni);
const LinearKernels kLinearAmxBf16 = linear_kernels(gemm_bf16_dot_amx, nullptr, 8);
const LinearKernels kLinearAmxInt8 = linear_kernels(gemm_bf16_dot_amx, &kInt8Amx, 8);
}  // namespace warpweave
#endif
