// wgmma (sm_90a): d[64 x N] (+)= a[64 x 16] * b[16 x N], float32 accumulation, issued by a warpgroup.
// Operand a is a K-major shared-memory descriptor (ss) or four registers (rs); b is a descriptor, K-major in qk,
// MN-major (transposed) in pv. `accumulate` 0: d = a*b. The wrappers are written by tools/generate_wgmma.py.
#pragma once

#include "device/cuda/wgmma_bf16.h"
#include "device/cuda/wgmma_f16.h"
